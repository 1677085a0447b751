"""Find the extra of fedrec that brings a package, in the installed metadata."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from fedrec.errors import SettingsError

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^\]]*\])?\s*(?P<sign>>=|==)\s*(?P<version>[\w.]+)"
    r"(?:\s*;\s*extra == ['\"](?P<extra>\w+)['\"])?$"
)
_DISTRIBUTIONS = {
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "llvmlite": "numba",
    "mlflow": "mlflow-skinny",
    "tensorboardX": "tensorboardx",
}
"""Modules whose distributions have a different name."""
_NOT_FOR_USERS = "dev"


def smallest_extra(*names: str) -> str:
    """Return the extra with the fewest packages that brings all of these modules.

    Return nothing if no extra does.
    """
    brought: dict[str, set[str]] = defaultdict(set)
    for text in importlib.metadata.requires("fedrec") or []:
        found = REQUIREMENT.match(text)
        if found is not None and found["extra"] not in (None, _NOT_FOR_USERS):
            brought[found["extra"]].add(found["name"])
    wanted = {_DISTRIBUTIONS.get(_top(name), _top(name)) for name in names}
    fitting = [(len(has), extra) for extra, has in brought.items() if wanted <= has]
    return min(fitting)[1] if fitting and names else ""


def how_to_install(*names: str) -> str:
    """Return the command that installs what these modules belong to."""
    extra = smallest_extra(*names)
    return install_command(extra) if extra else f"pip install {' '.join(names)}"


def install_command(extra: str = "") -> str:
    """Return the command that installs fedrec with an extra, from where it came before.

    That is a checkout, a wheel's file or address, or otherwise a package index.
    """
    part = f"[{extra}]" if extra else ""
    origin = importlib.metadata.distribution("fedrec").read_text("direct_url.json")
    found = json.loads(origin) if origin else {}
    if found.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(found['url']).path)}{part}'"
    return f"pip install 'fedrec{part}{' @ ' * bool(found)}{found.get('url', '')}'"


def is_missing(name: str) -> bool:
    """Return whether a module isn't installed, without importing it."""
    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True


def require(*names: str) -> None:
    """Check that all modules of a command are installed, before it writes or computes anything.

    Raises:
        SettingsError: a module isn't installed.
    """
    missing = [name for name in names if is_missing(name)]
    if missing:
        raise not_installed(missing[0], among=names)


def not_installed(name: str, *, among: Sequence[str] = ()) -> SettingsError:
    """Return the error for a module that isn't installed.

    Args:
        among: all modules of the command, which a single extra should bring.
    """
    install = how_to_install(*(among if smallest_extra(*among) else (name,)))
    return SettingsError(
        f"This needs {_top(name)}, which is not installed.",
        remedy=f"Install it with: {install}",
    )


def _top(name: str) -> str:
    return name.partition(".")[0]
