"""What is wrong with a plan, in the words that people read."""

from __future__ import annotations

from fedrec.plan.combinations import find_conflicts
from fedrec.plan.schema import Plan


def check_plan(plan: Plan) -> list[str]:
    """Return a sentence for every contradiction in a plan; empty when it can work."""
    return [conflict.sentence for conflict in find_conflicts(plan)]
