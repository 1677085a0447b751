"""Outside its own folder no code names an algorithm, but where papers and results are about it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrec.algorithms
from fedrec.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "common/fedrec",
    "server/fedrec_server",
    "server/fedrec_authority",
    "client/fedrec_client",
    "lab/fedrec_lab",
)
ALLOWED = (
    "common/fedrec/algorithms/",
    "lab/fedrec_lab/papers/",
    "lab/fedrec_lab/comparison/references/",
    "lab/fedrec_lab/demo/",
    # The commands of these, or that compare algorithms by name.
    "lab/fedrec_lab/cli/reproduce.py",
    "lab/fedrec_lab/cli/evaluate.py",
    "lab/fedrec_lab/cli/demo.py",
    "lab/fedrec_lab/cli/tune.py",
)
KINDS = [kind for kind in ALGORITHMS.values() if kind.__module__.startswith("fedrec.algorithms.")]
NAMES = {word for kind in KINDS for word in (kind.name, kind.__name__, kind.settings_type.__name__)}
WORD = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(sorted(NAMES))})(?![A-Za-z0-9])")


def named_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of what names an algorithm; comments and docstrings may."""
    if not WORD.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    # A string that is a statement documents what it stands in or below.
    prose = {place(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if place(node) not in prose and WORD.search(node.value):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and WORD.search(token.string):
            yield token.start[0], token.string


def place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def files() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(ALLOWED)]


def test_no_code_outside_names_an_algorithm():
    assert len(files()) > 200
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files()
        for line, text in named_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_what_is_allowed_exists_and_needs_it():
    for allowed in ALLOWED:
        path = ROOT / allowed
        each = path.rglob("*.py") if path.is_dir() else [path]
        assert any(list(named_in(one.read_text(encoding="utf-8"))) for one in each), allowed


@pytest.mark.parametrize(
    "source",
    [
        "from fedrec.algorithms import FedMF",
        "import fedrec.algorithms.fedmf_kernel",
        'if name == "ease":\n    pass',
        'text = f"set algorithm.name = fedals, {x}"',
        "TUNED = FedNCFSettings()",
    ],
)
def test_a_name_in_code_is_found(source):
    assert list(named_in(source))


@pytest.mark.parametrize(
    "source",
    [
        '"""What ease sums."""',
        'GRID = 1\n"""Those of fedals."""',
        "x = 1  # as fedmf does",
        'def f():\n    """As FedMF does."""\n',
        'text = "an increase of easels"',
        "increase = release",
    ],
)
def test_prose_and_other_words_are_not(source):
    assert not list(named_in(source))


def test_the_names_are_those_of_fedrecs_own():
    assert {"fedmf", "FedMF", "FedMFSettings", "ease", "EASE"} <= NAMES
    assert set(fedrec.algorithms.__all__) >= {kind.__name__ for kind in KINDS}
