"""A missing package is told with the smallest extra that brings it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.extras import REQUIREMENT, how_to_install, is_missing, require, smallest_extra

ROOT = Path(__file__).parents[2]
BROUGHT_BY_OTHERS = {"google", "grpc", "structlog", "typing_extensions"}


def imported() -> dict[str, Path]:
    """Return every package that product code imports, with a file that does."""
    found: dict[str, Path] = {}
    for part in ("common", "server", "client", "lab"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                found |= {name.partition(".")[0]: path for name in names}
    return found


@pytest.mark.slow
def test_every_optional_import_of_the_tree_has_an_extra():
    requirements = map(REQUIREMENT.match, importlib.metadata.requires("fedrec") or [])
    always = {
        found["name"].replace("-", "_") for found in requirements if found and not found["extra"]
    }
    known = always | BROUGHT_BY_OTHERS | sys.stdlib_module_names
    optional = {
        name: path
        for name, path in imported().items()
        if name not in known and not name.startswith("fedrec")
    }
    assert {"torch", "tenseal", "matplotlib", "grpc_health", "phe", "implicit"} <= optional.keys()
    assert {name: path for name, path in optional.items() if not smallest_extra(name)} == {}


@pytest.mark.parametrize(
    ("modules", "extra"),
    [
        (("tenseal",), "authority"),
        (("gmpy2",), "authority"),
        (("torch.nn",), "client"),
        (("pyarrow",), "client"),
        (("grpc_health",), "server"),
        (("uvicorn",), "serve"),
        (("uvicorn", "grpc_health"), "server"),
        (("torch", "tenseal"), "client"),
        (("matplotlib",), "lab"),
        (("torch", "grpc_health"), "lab"),
        (("phe",), "papers"),
        (("scipy",), "references"),
    ],
)
def test_the_smallest_extra_brings_all_that_is_needed(modules, extra):
    assert smallest_extra(*modules) == extra
    assert how_to_install(*modules) == f"pip install 'fedrec[{extra}]'"


def test_what_no_extra_brings():
    assert smallest_extra("nosuchthing") == ""
    assert how_to_install("nosuchthing") == "pip install nosuchthing"


def test_what_is_missing_is_named_with_an_extra_for_all(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    assert is_missing("tenseal")
    assert not is_missing("json")
    require("json", "torch")
    message = re.escape(
        "needs tenseal, which is not installed. Install it with: pip install 'fedrec["
    )
    with pytest.raises(SettingsError, match=message + r"client\]'"):
        require("torch", "tenseal")
    with pytest.raises(SettingsError, match=message + r"authority\]'"):
        require("tenseal")
