"""Plans and users for tests: a test says what matters to it, the rest is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedrec.data import UserSplit, generate, leave_one_out
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.schema import Plan

Section = Mapping[str, Any]


def plan_of(base: Mapping[str, Section] | None = None, /, **sections: Section) -> Plan:
    """Return a plan whose `sections` change those of `base`, setting by setting.

    A section that names another algorithm or protection than `base` replaces all of its settings.
    """
    values = {name: dict(section) for name, section in (base or {}).items()}
    for name, section in sections.items():
        kept = values.get(name, {})
        other = "name" in section and section["name"] != kept.get("name", section["name"])
        values[name] = {**({} if other else kept), **section}
    return Plan.model_validate(values)


def plans(**base: Section) -> Callable[..., Plan]:
    """Return a `plan_of` with a base of its own, as in `plans(algorithm={"name": "ease"})`."""
    return partial(plan_of, base)


def params(*core: object, long: Iterable[object]) -> list[object]:
    """Return values of a parameter: those of `make test`, and those of `make test-more` alone."""
    return [*core, *(pytest.param(value, marks=pytest.mark.long) for value in long)]


def users_of(
    n_users: int,
    n_items: int,
    *,
    clusters: int = 3,
    each: int = 12,
    noise: float = 0.0,
    seed: int = 3,
    short: int = 1,
    thin: float = 1.0,
) -> UserSplit:
    """Return users who like the items of their own cluster.

    Args:
        each: interactions of a user, of which two are held out.
        short: user u lacks the first `u % short` interactions.
        thin: the first user keeps this share of the interactions, the last one all, at random.
    """
    made = generate(
        n_users=n_users, n_items=n_items, n_clusters=clusters, interactions_per_user=each,
        noise=noise, seed=seed,
    )  # fmt: skip
    place = np.arange(len(made.interactions))
    kept = place % each >= place // each % short
    if thin < 1:
        share = np.repeat(np.linspace(thin, 1.0, n_users), each)
        kept &= np.random.default_rng(0).random(len(place)) < share
    return leave_one_out(made.interactions.take(kept), made.catalogue)


def check_plan(plan: Plan) -> list[str]:
    """Return a sentence for every contradiction in a plan; empty when it can work."""
    return [conflict.sentence for conflict in find_conflicts(plan)]
