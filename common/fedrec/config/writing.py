"""Settings as TOML text: what a run resolved to, and files that programs write."""

from __future__ import annotations

from collections.abc import Mapping

from fedrec.config.explain import as_toml
from fedrec.config.schema import Plan

__all__ = ["settings_text"]


def settings_text(plan: Plan, local: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """Return a settings file with every value of the plan written out.

    Args:
        plan: the shared sections.
        local: values of the sections that belong to one machine; None values are left out.
    """
    sections: dict[str, Mapping[str, object]] = plan.model_dump(include=set(Plan.model_fields))
    sections |= local or {}
    lines = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {as_toml(value)}" for key, value in values.items() if value is not None]
        lines.append("")
    return "\n".join(lines)
