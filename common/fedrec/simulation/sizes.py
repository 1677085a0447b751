"""What a client's message costs under each protection, against dense updates."""

from __future__ import annotations

from fedrec.config.schema import Plan
from fedrec.errors import SettingsError
from fedrec.protection import PROTECTIONS
from fedrec.reports.figures import SizeBar
from fedrec.training.layout import Layout

__all__ = ["message_sizes"]


def message_sizes(plan: Plan, n_items: int) -> tuple[SizeBar, ...]:
    """Return a bar for each protection and preset, for the plan's update structure and dense.

    Parameter sets that cannot protect the vector are left out.
    """
    bars = []
    dense = plan.update.model_copy(update={"structure": "dense"})
    for update in [plan.update] if plan.update == dense else [plan.update, dense]:
        spec = Layout.of(plan.model_copy(update={"update": update}), n_items).vector_spec
        for name, protection in PROTECTIONS.items():
            for preset in protection.presets:
                try:
                    chosen = protection.plan(spec, preset=preset)
                except SettingsError:
                    continue
                used = (plan.protection.name, plan.protection.preset) == (name, preset)
                label = name if len(protection.presets) == 1 else f"{name} ({preset})"
                bars.append(
                    SizeBar(
                        label=f"{update.structure}, {label}",
                        n_bytes=chosen.message_bytes,
                        chosen=used and update == plan.update,
                    )
                )
    return tuple(bars)
