"""The flag with which whoever runs a command accepts that bits differ from here on."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AcceptOtherArithmetic"]

AcceptOtherArithmetic = Annotated[
    bool,
    typer.Option(
        # The same text as in `fedrec.provenance`, whose import would cost the help a second.
        "--accept-other-arithmetic",
        help="Go on where training rounds otherwise than before: as good, but not the same bits.",
    ),
]
