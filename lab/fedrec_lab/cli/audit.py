"""`fedrec audit`: what sums would determine, what a coordinator could read, what would leak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from fedrec_lab.cli.audit_dp import EPILOG as DP_EPILOG
from fedrec_lab.cli.audit_dp import audit_dp
from fedrec_lab.cli.audit_indices import indices
from fedrec_lab.cli.audit_sums import sums
from fedrec_lab.cli.audit_wire import wire

if TYPE_CHECKING:
    # typer carries its own copy of click, and names this type nowhere else.
    from typer._click.core import Context

__all__ = ["app"]

_SHORTHAND = "sums"


class _AuditGroup(TyperGroup):
    """Takes `fedrec audit SETTINGS` as `fedrec audit sums SETTINGS`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put the shorthand's word before what names no audit."""
        named = [*self.list_commands(ctx), *ctx.help_option_names]
        if args and args[0] not in named:
            args = [_SHORTHAND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_AuditGroup,
    no_args_is_help=True,
    help="Report what the released sums would determine (sums), what a coordinator could read of "
    "its traffic and its folder (wire), and what indices in the clear would leak (indices).\n\n"
    "Before a run: sums and indices, where the data is. After it: wire, where the coordinator "
    "ran. `fedrec audit SETTINGS` is short for `fedrec audit sums SETTINGS`.",
    epilog=(
        "Examples:\n"
        "  fedrec audit sums run.toml\n"
        "  fedrec audit wire coordinator.toml --recording recording\n"
        "  fedrec audit indices run.toml --figure leak.svg"
    ),
)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec audit sums run.toml\n"
        "  fedrec audit sums run.toml --set federation.minimum_item_users=20 --json"
    )
)(sums)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec coordinator run coordinator.toml --record-wire recording\n"
        "  fedrec audit wire coordinator.toml --recording recording\n"
        "  fedrec audit wire coordinator.toml --recording recording --truth clients/1 --json"
    )
)(wire)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec audit indices run.toml\n"
        "  fedrec audit indices run.toml --set update.structure=topk --set update.ratio=0.05 "
        "--rounds 5 --figure leak.svg"
    )
)(indices)
app.command("dp", epilog=DP_EPILOG)(audit_dp)
