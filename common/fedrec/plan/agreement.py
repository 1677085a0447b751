"""What the parties agree on: a plan's canonical form, its fingerprint, and what a client takes.

A value that the client's settings give must be the federation's. A value that decides what others
may learn about the client's users is compared even where the settings are silent: there the
default counts, which is the safe one, so that no coordinator weakens what nobody wrote down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fedrec.errors import PlanMismatch
from fedrec.ids import digest
from fedrec.plan.algorithm import training_path
from fedrec.plan.schema import Plan, section_types
from fedrec.protection import PROTECTIONS
from fedrec.section import Section, as_toml


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


_SHOWN_CHARS = 60

# A plan's field that is not listed here is always compared, a new one too.
_FREE = frozenset(
    {
        # Names the federation; the roster, which the pinned authority signed, repeats it.
        "federation.name",
        # Public anyway: initial models, negatives and bases hide nothing under any seed.
        "federation.seed",
        # Closeness of the measurement, not what leaves a client: 44 sums whatever K is.
        "evaluation.at",
        # The default measures in every round, so that no other value says more.
        "evaluation.every_rounds",
        # How long training goes on. What many noisy sums say together is bounded by
        # privacy.epsilon, which this client counts for itself; of exact sums nothing is promised.
        "rounds.total",
        # Noise is scaled to the clip, so that neither it nor the divisor of sums changes what
        # they say about a user.
        "privacy.clip",
        "privacy.expected_users",
        # Who is asked and for how long; how few may answer is minimum_clients.
        "rounds.clients_per_round",
        "rounds.cells_per_round",
        "rounds.over_provision",
        "rounds.deadline_seconds",
        "rounds.mask_step_seconds",
        "rounds.report_seconds",
        # The key holder's work; sums of more are refused, not opened unseen.
        "rounds.recompute_limit",
    }
)
# How well the model learns. Clipping bounds one user's pull on a sum and hides nothing unless noise
# is scaled to it, as under `privacy`, which counts in the same steps of the grid.
_FREE_SECTIONS = frozenset({"algorithm", "training", "update"})
_BOUND = frozenset(
    {
        # What the sums are of: some algorithms sum what users hold, without a negative beside it.
        "algorithm.name",
        # Negatives are the cover under which a touched row may be no interaction.
        "algorithm.negatives_per_positive",
        # What is wrapped, its negatives among it.
        "algorithm.base",
        # "entry" counts users for each value, which tells which rows of B they trained.
        "update.normaliser",
        # "clear" has the coordinator read which values are sent.
        "update.indices",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Which values are as strict as the client's own, and how to say so."""

    accepts: Callable[[Any, Any], bool]
    words: str = ""


_AT_LEAST = _Order(accepts=lambda ours, theirs: theirs >= ours, words=" or more")
_AT_MOST = _Order(accepts=lambda ours, theirs: theirs <= ours, words=" or less")

_WITH_ENCRYPTION = ("protection.preset", "protection.key_holder")

# What has no entry has no order and must be equal: rounds.user_fraction, because fewer users in
# a sum hide each other less and more users are each in more sums; protection.preset, because
# sets trade security for size; protection.key_holder, because each of the two trusts somebody
# whom the other does not.
_ORDERS: Mapping[str, _Order] = {
    # With few holders an item's row is about these users.
    "federation.minimum_item_users": _AT_LEAST,
    # More cells whose counts are not believed.
    "federation.corrupt_cells": _AT_LEAST,
    # Two counts differ by the users that differ.
    "federation.minimum_new_users": _AT_LEAST,
    # Sums that claim more users than this are refused; overflow is excluded up to here.
    "federation.maximum_users": _AT_MOST,
    # Fewer summands hide each other less. The key holder and every client enforce both.
    "rounds.minimum_clients": _AT_LEAST,
    "rounds.minimum_summands": _AT_LEAST,
    # More corrupt clients to withstand, and a coordinator that lies.
    "protection.corrupt_share": _AT_LEAST,
    "protection.coordinator": _Order(
        accepts=lambda ours, theirs: theirs == "malicious", words=' or "malicious"'
    ),
    "algorithm.negatives_per_positive": _AT_LEAST,
    "update.normaliser": _Order(accepts=lambda ours, theirs: theirs in ("item", ours)),
    "update.indices": _Order(accepts=lambda ours, theirs: theirs in ("hidden", ours)),
    # A client that lets the coordinator read updates loses nothing by encryption.
    "protection.name": _Order(accepts=lambda ours, theirs: ours in ("none", theirs)),
    # Noise takes nothing from a client that asked for none.
    "privacy.mechanism": _Order(accepts=lambda ours, theirs: ours in ("none", theirs)),
    # 0 follows from the budget, which is compared by itself.
    "privacy.noise_multiplier": _Order(
        accepts=lambda ours, theirs: not ours or theirs >= ours, words=" or more"
    ),
    "privacy.epsilon": _AT_MOST,
    "privacy.delta": _AT_MOST,
    "privacy.rounds_per_user": _Order(
        accepts=lambda ours, theirs: not ours or 0 < theirs <= ours, words=" or less"
    ),
    "privacy.colluding_share": _AT_LEAST,
    # Only "paper" leaks the held-out items.
    "evaluation.protocol": _Order(
        accepts=lambda ours, theirs: theirs != "paper" or ours == "paper",
        words=" or another that does not leak the held-out items",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value of the federation's plan that the client did not agree to.

    Attributes:
        key: dotted, as in ``rounds.total``.
        ours: the client's value.
        theirs: the federation's.
        given: whether the client's settings set it; else it is the default.
        words: which other values the client would take.
    """

    key: str
    ours: Any
    theirs: Any
    given: bool
    words: str = ""

    def __str__(self) -> str:
        origin = "" if self.given else " (the default)"
        return (
            f"{self.key} is {_shown(self.theirs)} in the federation, but this client's settings "
            f"say {_shown(self.ours)}{self.words}{origin}"
        )

    @property
    def agreeing(self) -> str:
        """The line with which the client would agree."""
        return f"{self.key} = {_shown(self.theirs)}"


def always_compared() -> tuple[str, ...]:
    """Return the plan's fields that a client compares even where its settings are silent."""
    found = (
        f"{section}.{name}"
        for section, _, kind in section_types(Plan)
        for name in kind.model_fields
    )
    return tuple(filter(_binds, dict.fromkeys(found)))


def plan_differences(expected: Plan, found: Plan) -> tuple[Difference, ...]:
    """Return every value of a federation's plan that a client did not agree to.

    Args:
        expected: the client's settings; which of them were given matters.
        found: the coordinator's plan.
    """
    return tuple(_differences(expected, found))


def _differences(expected: Plan, found: Plan) -> Iterator[Difference]:
    for section in Plan.model_fields:
        ours, theirs = getattr(expected, section), getattr(found, section)
        given = ours.model_fields_set if section in expected.model_fields_set else frozenset()
        for name in type(ours).model_fields:
            key = f"{section}.{name}"
            if type(ours) is not type(theirs) and name != "name":
                # Settings of another algorithm; that it is another one is said already.
                continue
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine == other or not (name in given or _binds(key)):
                continue
            if key in _WITH_ENCRYPTION and ours.name == "none" != theirs.name:
                # Any encryption is more than none; its set and key holder go with it.
                continue
            if key == "protection.key_holder" and not PROTECTIONS[theirs.name].needs_reveal:
                # There is no key to hold.
                continue
            if section == "privacy" and expected.privacy.mechanism == "none" and name not in given:
                # Any noise is more than none; its numbers go with it.
                continue
            if isinstance(mine, Section) and type(mine) is type(other):
                for inner in type(mine).model_fields:
                    one, another = getattr(mine, inner), getattr(other, inner)
                    if one != another:
                        told = f"{key}.{inner}"
                        yield Difference(key=told, ours=one, theirs=another, given=name in given)
                continue
            order = _ORDERS.get(key)
            if order is None or not order.accepts(mine, other):
                words = "" if order is None else order.words
                yield Difference(key=key, ours=mine, theirs=other, given=name in given, words=words)


def _shown(value: object) -> str:
    """Return a value as TOML; a coordinator's text is no longer and no stranger than a value."""
    text = as_toml(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _binds(key: str) -> bool:
    return key in _BOUND or (key not in _FREE and key.partition(".")[0] not in _FREE_SECTIONS)
