"""The flag with which whoever runs a command accepts what a plan without encryption exposes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["FLAG", "AcceptExposure"]

FLAG = "--accept-exposure"

AcceptExposure = Annotated[
    bool,
    typer.Option(
        FLAG,
        help="Run without encryption an algorithm that shows the coordinator what users hold.",
    ),
]
