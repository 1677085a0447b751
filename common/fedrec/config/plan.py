"""The plan's canonical form and fingerprint, and the layout that follows from it."""

from __future__ import annotations

import json

from pydantic import ValidationError

from fedrec.config.algorithm import training_path
from fedrec.config.schema import Plan
from fedrec.errors import PlanMismatch
from fedrec.ids import digest


def plan_to_json(plan: Plan) -> bytes:
    """Return the canonical JSON of a plan: sorted keys, no spaces, every default written out."""
    values = Plan.model_validate(plan.model_dump(include=set(Plan.model_fields))).model_dump()
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def plan_from_json(raw: bytes) -> Plan:
    """Read a plan that a peer sent.

    Raises:
        PlanMismatch: when it is not a plan that this version understands.
    """
    try:
        return Plan.model_validate_json(raw)
    except ValidationError as error:
        raise PlanMismatch(
            f"The coordinator's plan cannot be read: {error.error_count()} problems, first "
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}.",
            remedy="Install the same fedrec version on both sides.",
        ) from None


def plan_fingerprint(plan: Plan) -> str:
    """Return the hexadecimal SHA-256 of the canonical plan and of what trains it on processors."""
    return digest("fedrec plan v2", plan_to_json(plan), training_path(plan).encode()).hex()
