"""The protections of the how-to are two files and their lines, and pass what the page says."""

import re
import shutil

import pytest
from docs.commands import run
from docs.pages import ROOT, blocks

TEXT = (ROOT / "docs" / "how-to" / "add-a-protection.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_of_the_page_works(tmp_path):
    """As a reader does, but in a copy of the library: two files, and the lines that name them."""
    common = shutil.copytree(
        ROOT / "common", tmp_path / "common", ignore=shutil.ignore_patterns("__pycache__")
    )
    folder = common / "fedrec" / "protection"
    for name, program in zip(("pads", "pairs"), blocks(TEXT, "python"), strict=True):
        assert max(map(len, program.splitlines())) <= 100
        (folder / f"{name}.py").write_text(program)
    added, about = (
        [line.removeprefix("+") for line in part.splitlines()] for part in blocks(TEXT, "text")
    )
    init = (folder / "__init__.py").read_text()
    last = '    "masks": Masks,\n'
    assert init.count(last) == 1
    init = init.replace(last, last + "\n".join(added[2:]) + "\n")
    (folder / "__init__.py").write_text("\n".join(added[:2]) + "\n" + init)
    seen = common / "fedrec" / "plan" / "protections.py"
    first = '    "masks": AboutProtection(\n'
    assert seen.read_text().count(first) == 1
    seen.write_text(seen.read_text().replace(first, "\n".join(about) + "\n" + first))
    explain, conformance, sockets, restarts = blocks(TEXT, "sh")
    assert "fewest_pairs" in run(explain, ROOT, common)
    for command, fewest in ((conformance, 50), (sockets, 2), (restarts, 3)):
        passed = re.search(r"\b(\d+) passed", run(command, ROOT, common))
        assert passed and int(passed.group(1)) >= fewest
