"""A client's state folder, before anything is made in it: a mistyped path is told, never filled.

A client started in the wrong folder would otherwise have new keys, apply to a federation
with them, and wait for people who know nothing of it.
"""

from __future__ import annotations

from pathlib import Path

from fedrec.durable import require_writable
from fedrec.errors import SettingsError
from fedrec.identity.identity import KEY_FILE, Identity

_HARMLESS = frozenset({"lock", "lost+found"})
"""What an empty folder may hold: a start that was interrupted, or a volume of its own."""
REVEALER_SECRETS = "epoch-*.secret"
"""Beside the keys of who opens sums, which are no client's."""
_SHOWN = 4
_NEW = "`fedrec client identity SETTINGS` makes a new client's keys."


def known_identity(folder: Path, label: str = "") -> Identity:
    """Return the keys of a client that was made before; makes and changes nothing else.

    Args:
        folder: the client's state.
        label: what its keys were made with; empty takes any.

    Raises:
        SettingsError: there is no client's folder at that path, or another client's.
        KeysError: its keys are damaged or readable by others.
    """
    if not (folder / KEY_FILE).exists() or any(folder.glob(REVEALER_SECRETS)):
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, {_found(folder)}: no client was made "
            "there.",
            remedy=f"Check client.state and --state. {_NEW}",
        )
    found = Identity.load_or_create(folder)
    if label and found.public.label != label:
        raise SettingsError(
            f"client.state is {str(folder.absolute())!r}, a folder of the client "
            f"{found.public.label!r}; client.label is {label!r}.",
            remedy="Check client.state and --state, or set client.label to what the keys say.",
        )
    return found


def new_or_known_identity(folder: Path, label: str) -> Identity:
    """Return the keys in a client's folder, made where it is new or empty.

    Raises:
        SettingsError: it holds something else, or nothing may be written there.
        KeysError: its keys are damaged or readable by others.
    """
    if not (folder / KEY_FILE).exists() and _content(folder):
        raise SettingsError(
            f"The state folder is {str(folder.absolute())!r}, {_found(folder)}, which is no "
            "client's.",
            remedy="Name a folder that is empty or not there yet.",
        )
    require_writable(folder, "client.state")
    return Identity.load_or_create(folder, label)


def _content(folder: Path) -> list[str]:
    if folder.exists() and not folder.is_dir():
        return [folder.name]
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # Names of files that are being written begin with a dot.
    return sorted(name for name in names - _HARMLESS if not name.startswith("."))


def _found(folder: Path) -> str:
    if not folder.exists():
        return "which does not exist"
    if not folder.is_dir():
        return "a file"
    names = _content(folder)
    if not names:
        return "an empty folder"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"a folder with {', '.join(names[:_SHOWN])}{more} in it"
