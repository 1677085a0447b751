"""What one client uploads in a round, under a plan and under what one would compare it with."""

from __future__ import annotations

from fedrec.config.layout import dense_values, protection_of
from fedrec.config.schema import Plan, ProtectionSettings, UpdateSettings
from fedrec.errors import SettingsError
from fedrec_lab.reports.plot_data import SizeBar

__all__ = ["message_sizes"]


def message_sizes(plan: Plan, n_items: int) -> tuple[SizeBar, ...]:
    """Return the plan's own upload first, then others'; sets that cannot work are left out."""
    own = protection_of(plan, n_items).chosen
    paper = ProtectionSettings(name="ckks", preset="paper")
    plain = ProtectionSettings(name="none")
    dense = UpdateSettings(structure="dense", fraction_bits=plan.update.fraction_bits)
    others: list[tuple[str, dict[str, object]]] = [
        ("the same update, plain integers", {"protection": plain}),
        ("the same update, the paper's CKKS set", {"protection": paper}),
        ("dense table, the paper's CKKS set", {"protection": paper, "update": dense}),
    ]
    bars = [
        SizeBar(
            label=f"this run: {plan.update.structure}, {own.protection} {own.preset}",
            n_bytes=own.message_bytes,
            chosen=True,
        ),
        SizeBar(label="dense table, plain float32", n_bytes=4 * dense_values(plan, n_items)),
    ]
    for label, changes in others:
        try:
            chosen = protection_of(plan.model_copy(update=changes), n_items).chosen
        except SettingsError:
            continue
        bars.append(SizeBar(label=label, n_bytes=chosen.message_bytes))
    return tuple(bars)
