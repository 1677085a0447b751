"""A command's settings: their file, and those given as flags, `--set rounds.total=5`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["SetValues", "SettingsFile", "values_of"]

SettingsFile = Annotated[
    Path, typer.Argument(metavar="SETTINGS", help="The federation's settings.")
]

SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrule a setting, as in rounds.total=5; data.separator= unsets one. Repeat it.",
    ),
]


def values_of(given: Sequence[str] | None) -> dict[str, object]:
    """Return what `--set` was given, by dotted key; no value takes the file's away.

    Raises:
        SettingsError: for text without an equals sign.
    """
    from fedrec.config.loading import UNSET
    from fedrec.errors import SettingsError

    found: dict[str, object] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(
                f"--set {text} names no value.", remedy="Write it as --set rounds.total=5."
            )
        found[key.strip()] = value.strip() or UNSET
    return found
