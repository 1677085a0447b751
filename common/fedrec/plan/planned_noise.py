"""The noise mechanism of a plan."""

from __future__ import annotations

import math

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.plan.schema import Plan
from fedrec.privacy import Mechanism, largest_rho
from fedrec.privacy.noise import SMOOTHING_VARIANCE

_ANY_NUMBER = 1_000_000


def mechanism_of(plan: Plan) -> Mechanism | None:
    """Return a plan's mechanism, or None if it adds no noise."""
    asked = plan.privacy
    if asked.mechanism == "none":
        return None
    bound = math.floor(asked.clip / plan.update.clip * 2.0**plan.update.fraction_bits)
    multiplier = noise_multiplier_of(plan)
    clients = plan.fewest_summands
    # At least one, and at most all other clients.
    colluding = max(1, math.ceil(asked.colluding_share * clients - 1e-9))
    noisy = max(1, clients - colluding)
    if asked.mechanism == "laplace":
        # As in the papers, each client adds all of its noise.
        noisy, share = 1, math.ceil(multiplier * bound)
    else:
        least = (multiplier * bound) ** 2 / noisy + SMOOTHING_VARIANCE
        share = math.ceil(math.sqrt(least))
    return Mechanism(
        kind=asked.mechanism,
        bound=max(1, bound),
        share=max(1, share),
        clients=clients,
        noisy=noisy,
        rounds_per_user=_rounds_per_user(plan),
        epsilon=asked.epsilon,
        delta=asked.delta,
        divisor=asked.expected_users,
        in_parts=is_one_release(plan),
    )


def is_one_release(plan: Plan) -> bool:
    """Return whether all noisy sums of a run are parts of one release with one clip."""
    kind = ALGORITHMS[plan.algorithm.name]
    in_parts = issubclass(kind, ExactAlgorithm) and kind.one_release
    return in_parts and plan.privacy.mechanism != "none"


def noise_multiplier_of(plan: Plan) -> float:
    """Return the plan's noise multiplier, or the smallest one within the budget."""
    asked = plan.privacy
    if asked.noise_multiplier:
        return asked.noise_multiplier
    rho = largest_rho(asked.mechanism, asked.epsilon, asked.delta)
    planned = 1 if is_one_release(plan) else _rounds_per_user(plan)
    return math.sqrt(planned / (2.0 * rho))


def _rounds_per_user(plan: Plan) -> int:
    if is_one_release(plan):
        # The budget alone limits how often a part is drawn again.
        return _ANY_NUMBER
    return min(plan.privacy.rounds_per_user or plan.rounds.total, plan.rounds.total)
