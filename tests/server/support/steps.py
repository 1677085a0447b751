"""The steps of masks, as rules of a state machine without any cryptography."""

from __future__ import annotations

from dataclasses import replace

from fedrec.protection import Masks
from fedrec_server.rounds.state import Rules

STEP_OF = {step.phase: step.name for step in Masks.steps.all}
"""The step whose messages a phase collects."""


def stepwise(rules: Rules) -> Rules:
    """Return rules of rounds that take the steps of masks."""
    return replace(rules, hides_updates=True, steps=Masks.steps)
