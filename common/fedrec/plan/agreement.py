"""Agreement on a plan: its canonical form, its fingerprint, and the values that a client accepts.

A value in the client's settings must equal the federation's value. A value that decides what others
may learn about the client's users is compared even if the settings omit it. Then the default
applies, which is the safe one, so that no coordinator can weaken it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fedrec.algorithms.about import CHANGED_SINCE_0_1
from fedrec.algorithms.trained import TRAINER_VERSION
from fedrec.errors import PlanMismatch
from fedrec.ids import digest
from fedrec.plan.algorithm import training_path
from fedrec.plan.schema import PLAN_FORM, Plan, section_types
from fedrec.protection import PROTECTIONS
from fedrec.section import Section, as_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForm:
    """How a release writes a plan, and what it signs of it.

    Attributes:
        release: the release whose runs have it.
        lacks: sections and fields that it doesn't have.
        trainer: the trainer's version in the fingerprint.
        changed: returns what sums of a plan mean otherwise since, or an empty string.
    """

    release: str
    lacks: tuple[tuple[str, str], ...] = ()
    trainer: int = TRAINER_VERSION
    changed: Callable[[Plan], str] = lambda plan: ""


def _changed_since_0_1(plan: Plan) -> str:
    name, is_noisy = plan.algorithm.name, plan.privacy.mechanism != "none"
    why = CHANGED_SINCE_0_1[name](is_noisy) if name in CHANGED_SINCE_0_1 else ""
    return f"{name} {why}" if why else ""


FORMS: Mapping[int, PlanForm] = {
    1: PlanForm(
        release="0.1",
        lacks=(("federation", "corrupt_cells"),),
        trainer=1,
        changed=_changed_since_0_1,
    ),
    PLAN_FORM: PlanForm(release="0.2"),
}
"""All forms that this release reads. New runs have the last one."""


def plan_to_json(plan: Plan) -> bytes:
    """Return the canonical JSON of a plan: sorted keys, no spaces, all defaults included."""
    values = Plan.model_validate(plan.model_dump(include=set(Plan.model_fields))).model_dump()
    for section, name in FORMS[plan.form].lacks:
        del values[section][name]
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def plan_from_json(raw: bytes) -> Plan:
    """Read a plan from a peer, in the form in which it was written.

    Raises:
        PlanMismatch: this version cannot read it.
    """
    try:
        plan = Plan.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole plan"
        why = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise PlanMismatch(
            f"The coordinator's plan cannot be read: {place}: {why}.",
            remedy="Install the same fedrec version on both machines.",
        ) from None
    return plan.in_form(next(form for form in FORMS if _is_of(plan, FORMS[form])))


def _is_of(plan: Plan, form: PlanForm) -> bool:
    return not any(name in getattr(plan, section).model_fields_set for section, name in form.lacks)


def plan_fingerprint(plan: Plan) -> str:
    """Return the hexadecimal SHA-256 of the canonical plan and its training path."""
    path = training_path(plan, FORMS[plan.form].trainer)
    return digest("fedrec plan v2", plan_to_json(plan), path.encode()).hex()


def plan_of_run(plan: Plan, *known: str) -> Plan:
    """Return a plan in the form of a known fingerprint of its run, or unchanged if in none."""
    forms = map(plan.in_form, FORMS)
    return next((form for form in forms if plan_fingerprint(form) in known), plan)


def check_continued(plan: Plan) -> None:
    """Refuse a run whose sums this release would read otherwise than the one that began it.

    Raises:
        PlanMismatch: they differ. The message names the difference.
    """
    form = FORMS[plan.form]
    if why := form.changed(plan):
        raise PlanMismatch(
            f"The run began with release {form.release}, and this release can't continue it: "
            f"{why}. Nothing was changed.",
            remedy=f"Finish the run with release {form.release}, or export the model (`fedrec "
            "client export-model`) and start a new run.",
        )


def check_new_run(plan: Plan) -> None:
    """Refuse a plan in a former form for a run that this party doesn't take part in yet.

    Otherwise a coordinator could choose the weaker rules of an earlier release.

    Raises:
        PlanMismatch: a former release began the run.
    """
    if plan.form < PLAN_FORM:
        release, own = FORMS[plan.form].release, FORMS[PLAN_FORM].release
        raise PlanMismatch(
            f"Release {release} made the run's plan, and this is release {own}. It continues such "
            "a run only in the state folder that took part in it.",
            remedy="Restore the state folder that took part, join with the release that began "
            "the run, or join the next run of an upgraded coordinator.",
        )


_SHOWN_CHARS = 60

# A plan's field that is not listed here is always compared, including new ones.
_FREE = frozenset(
    {
        # The federation's name, which the roster, signed by the pinned authority, repeats.
        "federation.name",
        # Public in any case: initial models, negatives and bases hide nothing, whatever the seed.
        "federation.seed",
        # How closely to measure, not what leaves a client: there are 44 sums for any K.
        "evaluation.at",
        # The default measures in every round, so no other value reveals more.
        "evaluation.every_rounds",
        # The length of training. Noisy sums are bounded together by privacy.epsilon, which this
        # client tracks itself. For exact sums nothing is promised.
        "rounds.total",
        # Noise is scaled to the clip, so neither the clip nor the divisor changes what sums reveal
        # about a user.
        "privacy.clip",
        "privacy.expected_users",
        # How many clients are asked, and for how long. minimum_clients sets how few may answer.
        "rounds.clients_per_round",
        "rounds.cells_per_round",
        "rounds.over_provision",
        "rounds.deadline_seconds",
        "rounds.mask_step_seconds",
        "rounds.report_seconds",
        # The key holder's work. It refuses larger sums and does not open them unchecked.
        "rounds.recompute_limit",
    }
)
# How well the model learns. Clipping bounds a user's influence on a sum and hides nothing unless
# noise is scaled to it, as under `privacy`, which counts in the same steps of the grid.
_FREE_SECTIONS = frozenset({"algorithm", "training", "update"})
_BOUND = frozenset(
    {
        # The content of sums: some algorithms sum what users hold, without negatives.
        "algorithm.name",
        # Negatives hide interactions: a touched row may be either.
        "algorithm.negatives_per_positive",
        # The wrapped algorithm, including its negatives.
        "algorithm.base",
        # "entry" counts users for each value, which reveals the rows of B that they trained.
        "update.normaliser",
        # With "clear" the coordinator reads which values are sent.
        "update.indices",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The values that are at least as strict as the client's own, and words for them."""

    accepts: Callable[[Any, Any], bool]
    words: str = ""


_AT_LEAST = _Order(accepts=lambda ours, theirs: theirs >= ours, words=" or more")
_AT_MOST = _Order(accepts=lambda ours, theirs: theirs <= ours, words=" or less")

_WITH_ENCRYPTION = ("protection.preset", "protection.key_holder")

# Fields without an entry have no order and must be equal. rounds.user_fraction: fewer users in a
# sum hide each other less, more users are in more sums. protection.preset: sets trade security for
# size. protection.key_holder: each of the two trusts a party that the other does not.
_ORDERS: Mapping[str, _Order] = {
    # With few holders, an item's row is about these users.
    "federation.minimum_item_users": _AT_LEAST,
    # More cells whose counts are not trusted.
    "federation.corrupt_cells": _AT_LEAST,
    # Two counts differ by the users that differ.
    "federation.minimum_new_users": _AT_LEAST,
    # Sums that claim more users than this are refused. Overflow is excluded up to here.
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
    # A client that accepts no encryption loses nothing by encryption.
    "protection.name": _Order(accepts=lambda ours, theirs: ours in ("none", theirs)),
    # A client that accepts no noise loses nothing by noise.
    "privacy.mechanism": _Order(accepts=lambda ours, theirs: ours in ("none", theirs)),
    # 0 derives it from the budget, which is compared separately.
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
    """A value of the federation's plan that the client did not accept.

    Attributes:
        key: dotted, as in ``rounds.total``.
        ours: the client's value.
        theirs: the federation's value.
        given: whether the client's settings set it. Otherwise it is the default.
        words: the other values that the client would accept.
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
        """The line for the settings with which the client would accept the value."""
        return f"{self.key} = {_shown(self.theirs)}"


def always_compared() -> tuple[str, ...]:
    """Return the plan's fields that a client compares even if its settings omit them."""
    found = (
        f"{section}.{name}"
        for section, _, kind in section_types(Plan)
        for name in kind.model_fields
    )
    return tuple(filter(_binds, dict.fromkeys(found)))


def plan_differences(expected: Plan, found: Plan) -> tuple[Difference, ...]:
    """Return every value of a federation's plan that a client did not accept.

    Args:
        expected: the client's settings. It matters which of them were given.
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
                # Settings of another algorithm. The algorithm itself is reported already.
                continue
            mine, other = getattr(ours, name), getattr(theirs, name)
            if mine == other or not (name in given or _binds(key)):
                continue
            if key in _WITH_ENCRYPTION and ours.name == "none" != theirs.name:
                # Any encryption is stricter than none, with its set and key holder.
                continue
            if key == "protection.key_holder" and not PROTECTIONS[theirs.name].needs_reveal:
                # Without a key there is no key holder.
                continue
            if section == "privacy" and expected.privacy.mechanism == "none" and name not in given:
                # Any noise is stricter than none, with its numbers.
                continue
            if isinstance(mine, Section) and type(mine) is type(other):
                for inner in type(mine).model_fields:
                    one, another = getattr(mine, inner), getattr(other, inner)
                    if one != another:
                        path = f"{key}.{inner}"
                        yield Difference(key=path, ours=one, theirs=another, given=name in given)
                continue
            order = _ORDERS.get(key)
            if order is None or not order.accepts(mine, other):
                words = "" if order is None else order.words
                yield Difference(key=key, ours=mine, theirs=other, given=name in given, words=words)


def _shown(value: object) -> str:
    """Return a value as TOML, so that a coordinator's text looks like nothing else."""
    text = as_toml(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _binds(key: str) -> bool:
    return key in _BOUND or (key not in _FREE and key.partition(".")[0] not in _FREE_SECTIONS)
