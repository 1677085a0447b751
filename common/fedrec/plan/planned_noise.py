"""The noise mechanism that a plan asks for."""

from __future__ import annotations

import math

from fedrec.plan.schema import Plan
from fedrec.privacy import Mechanism, cheapest_rho
from fedrec.privacy.noise import SMOOTHING_VARIANCE
from fedrec.protection.settings import FEWEST_SUMMANDS


def mechanism_of(plan: Plan) -> Mechanism | None:
    """Return a plan's mechanism; None where it asks for no noise."""
    asked = plan.privacy
    if asked.mechanism == "none":
        return None
    bound = math.floor(asked.clip / plan.update.clip * 2.0**plan.update.fraction_bits)
    multiplier = noise_multiplier_of(plan)
    clients = fewest_clients(plan)
    # One at least, and all but the user's own at most.
    colluding = max(1, math.ceil(asked.colluding_share * clients - 1e-9))
    noisy = max(1, clients - colluding)
    if asked.mechanism == "laplace":
        # As the papers do it: each client's noise is the whole of it.
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
    )


def noise_multiplier_of(plan: Plan) -> float:
    """Return the plan's noise over the clip, or the least with which the budget lasts."""
    asked = plan.privacy
    if asked.noise_multiplier:
        return asked.noise_multiplier
    rho = cheapest_rho(asked.mechanism, asked.epsilon, asked.delta)
    return math.sqrt(_rounds_per_user(plan) / (2.0 * rho))


def fewest_clients(plan: Plan) -> int:
    """Return the fewest clients whose sum can be published."""
    rounds = plan.rounds
    if plan.protection.name == "none":
        return rounds.minimum_clients
    return max(rounds.minimum_clients, rounds.minimum_summands, FEWEST_SUMMANDS)


def _rounds_per_user(plan: Plan) -> int:
    return min(plan.privacy.rounds_per_user or plan.rounds.total, plan.rounds.total)
