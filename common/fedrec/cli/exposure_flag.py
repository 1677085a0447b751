"""The flag with which a user of a command accepts what a plan exposes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["FLAG", "AcceptExposure"]

FLAG = "--accept-exposure"

AcceptExposure = Annotated[
    bool,
    typer.Option(
        FLAG,
        help="Run what shows the coordinator what users hold: an algorithm that does so without "
        "encryption, or indices in the clear.",
    ),
]
