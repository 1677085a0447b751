"""A missing package is told with the smallest extra that brings it."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrec.errors import SettingsError
from fedrec.extras import (
    REQUIREMENT,
    how_to_install,
    install_command,
    is_missing,
    require,
    smallest_extra,
)

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
        (("scipy", "matplotlib"), "lab"),
        (("implicit",), "references"),
    ],
)
def test_the_smallest_extra_brings_all_that_is_needed(modules, extra):
    assert smallest_extra(*modules) == extra
    assert how_to_install(*modules) == install_command(extra)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'fedrec[client]'"),
        (
            {"url": "file:///a%20b/fedrec-1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'fedrec[client] @ file:///a%20b/fedrec-1.0-py3-none-any.whl'",
        ),
        (
            {"url": "file:///a%20b", "dir_info": {"editable": True}},
            "pip install -e '/a b[client]'",
        ),
    ],
    ids=["an index", "a wheel", "a checkout"],
)
def test_the_command_names_where_fedrec_came_from(monkeypatch, origin, command):
    text = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    assert install_command("client") == command
    assert install_command() == command.replace("[client]", "")


def test_what_no_extra_brings():
    assert smallest_extra("nosuchthing") == ""
    assert how_to_install("nosuchthing") == "pip install nosuchthing"


def test_what_is_missing_is_named_with_an_extra_for_all(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    assert is_missing("tenseal")
    assert not is_missing("json")
    require("json", "torch")
    for modules, extra in ((("torch", "tenseal"), "client"), (("tenseal",), "authority")):
        seen = f"needs tenseal, which is not installed. Install it with: {install_command(extra)}"
        with pytest.raises(SettingsError, match=re.escape(seen)):
            require(*modules)
