"""One name, one meaning: no public class of the product shares its name with another."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("common", "server", "client", "lab")
GENERATED = "common/fedrec/wire/v1/"
"""Messages and services are named in `protos/`, after which the dataclasses are named."""


def public_classes(source: str) -> Iterable[str]:
    """Yield the names of a module's public classes."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def twins(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the class names that several modules define, with these modules."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for name in public_classes(source):
            found.setdefault(name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_public_class_name_means_two_things() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for part in PRODUCT
        for path in (ROOT / part).rglob("*.py")
    }
    own = {path: source for path, source in sources.items() if not path.startswith(GENERATED)}
    assert len(own) > 200
    assert twins(own) == {}


def test_a_twin_is_found() -> None:
    one, other = "class Step:\n    class Kind: ...\nclass _Own: ...", "class Step(int): ..."
    assert twins({"a.py": one, "b.py": other}) == {"Step": ["a.py", "b.py"]}
    assert twins({"a.py": one, "b.py": "class Kind: ...\nclass _Own: ..."}) == {}
