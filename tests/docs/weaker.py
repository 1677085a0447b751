"""What is held true of what no test types."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from docs.pages import ROOT, Typed
from typer import Exit
from typer._click.core import Context
from typer._click.exceptions import ClickException
from typer.main import get_command

from fedrec.cli.main import app
from fedrec.errors import SettingsError
from fedrec.settings.validation import load_settings

Check = Callable[[Typed], str]
"""Returns what is wrong, or nothing."""

_ENDS = ("|", ">", "&&", ";")
_IMAGE = re.compile(r"fedrec(-(coordinator|authority|client))?|client-\d")


def refusal_of(words: list[str]) -> str:
    """Return why the command's own parser refuses the words after `fedrec`, or nothing."""
    name, command, parent = "fedrec", get_command(app), None
    try:
        while command is not None:
            context = command.make_context(name, list(words), parent=parent)
            if not hasattr(command, "resolve_command"):
                break
            rest = [*context._protected_args, *context.args]
            parent = Context(command, info_name=name, parent=parent)
            name, command, words = command.resolve_command(context, rest)
    except ClickException as error:
        return f"`{' '.join(['fedrec', *words])}`: {error.format_message()}"
    except Exit:
        pass
    return ""


def arguments(typed: Typed) -> str:
    """The command's own parser takes the line, with each option and the type of its value."""
    words = shlex.split(typed.text)
    if "fedrec" not in words:
        return f"`{typed.text}` calls no fedrec"
    return refusal_of(_until_end(words[words.index("fedrec") + 1 :]))


def container(typed: Typed) -> str:
    """The files that an engine is given are there, and the command's parser takes the rest."""
    words = shlex.split(typed.text.replace("$HOME", "/root"))
    pairs = list(pairwise(words))
    missing = [path for flag, path in pairs if flag == "-f" and not (ROOT / path).exists()]
    stages = re.findall(r"(?m)^FROM .* AS (\S+)$", (ROOT / "deploy/Dockerfile").read_text())
    missing += [stage for flag, stage in pairs if flag == "--target" and stage not in stages]
    if missing:
        return f"there is no {', '.join(missing)}"
    at = [i for i, word in enumerate(words) if _IMAGE.fullmatch(word) and words[i - 1] != "-t"]
    after = _until_end(words[at[-1] + 1 :]) if at else []
    return refusal_of(after) if after else ""


def target(typed: Typed) -> str:
    """The Makefile has the target."""
    (name,) = re.findall(r"^make ([a-z0-9-]+)", typed.text)
    known = re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    return "" if name in known else f"the Makefile has no {name}"


def settings(typed: Typed) -> str:
    """The reader of settings takes the block as a file: keys, types, and how they fit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(typed.text, encoding="utf-8")
        try:
            load_settings(path, environ={})
        except SettingsError as error:
            return str(error)
    return ""


def entry_point(typed: Typed) -> str:
    """It is TOML, and names a family of algorithms as the package's own settings do."""
    points = tomllib.loads(typed.text)["project"]["entry-points"]
    return "" if list(points) == ["fedrec.algorithms"] else f"{list(points)} is no family"


def is_json(typed: Typed) -> str:
    """It is one JSON object."""
    return "" if isinstance(json.loads(typed.text), dict) else "no object"


def extras(typed: Typed) -> str:
    """The package has the extras that it installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = re.findall(r"(?:fedrec|\.whl)\[([a-z,]+)\]", typed.text)
    missing = set(named.split(",")) - set(project["optional-dependencies"])
    return f"there is no extra {', '.join(missing)}" if missing else ""


def files(typed: Typed) -> str:
    """The repository has the files that it names."""
    words = re.split(r"[ =]", typed.text)
    named = [word for word in words if word.startswith(("benchmarks/", "deploy/"))]
    missing = [word for word in named if not (ROOT / word).exists()]
    return f"there is no {', '.join(missing)}" if missing or not named else ""


def nothing(typed: Typed) -> str:
    """Nothing: it is another program's line."""
    return ""


def _until_end(words: list[str]) -> list[str]:
    ends = [at for at, word in enumerate(words) if word in _ENDS]
    return words[: ends[0]] if ends else words
