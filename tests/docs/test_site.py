"""The documentation as a site: two builders take the same file, strictly, and leave nothing out."""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docs.pages import ROOT

DOCS = ROOT / "docs"
NOT_COPIED = shutil.ignore_patterns("__pycache__")
BUILDERS = {
    "mkdocs": ("mkdocs", "build", "--strict", "--config-file"),
    "zensical": ("zensical", "build", "--strict", "--config-file"),
}


def config():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def in_navigation(entries):
    """Return the pages of a part of the navigation, however deep."""
    for entry in entries:
        for inner in [entry] if isinstance(entry, str) else entry.values():
            yield from [inner] if isinstance(inner, str) else in_navigation(inner)


def test_every_page_is_in_the_navigation_once():
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(in_navigation(config()["nav"])) == pages


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["mkdocs", pytest.param("zensical", marks=pytest.mark.long)])
def test_both_builders_take_it_without_a_warning(builder, tmp_path):
    """In a copy, so that neither leaves anything in the tree."""
    for name in ("docs", "common", "server", "client", "lab"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=NOT_COPIED)
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    (tmp_path / "mkdocs.yml").write_text(text)
    command, *flags = BUILDERS[builder]
    beside = Path(sys.executable).parent
    found = subprocess.run(
        [beside / command, *flags, tmp_path / "mkdocs.yml"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PATH": f"{beside}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert found.returncode == 0, found.stdout
    assert not re.search("warn|griffe", found.stdout, re.IGNORECASE), found.stdout
    page = (tmp_path / "site" / "reference" / "python.html").read_text("utf-8")
    # A docstring's sentence stands where the page has a line with colons.
    sentence = "Return the n best items for one user or many."
    assert ":::" not in html.unescape(page)
    assert "Recommender" in page and sentence in " ".join(html.unescape(page).split()), builder
