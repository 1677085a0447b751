"""The flag with which a user of a command accepts that bits differ from here on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.errors import SettingsError

__all__ = ["AcceptOtherArithmetic", "check_is_resumed"]

_FLAG = "--accept-other-arithmetic"
"""As in `fedrec.provenance`, whose import would cost every help a second."""

AcceptOtherArithmetic = Annotated[
    bool,
    typer.Option(
        _FLAG,
        help="Go on where training rounds otherwise than before: as good, but not the same bits.",
    ),
]


def check_is_resumed(accepted: bool, resume: Path | None) -> None:
    """Refuse the flag where nothing is gone on with.

    Raises:
        SettingsError: it was given without a folder to resume.
    """
    if accepted and resume is None:
        raise SettingsError(f"{_FLAG} is about a run that goes on.", remedy="Give --resume, too.")
