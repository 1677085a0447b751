"""What `[privacy]` goes with: the choices under which noise keeps the promise made for it."""

from __future__ import annotations

from collections.abc import Iterator

from fedrec.algorithms import ALGORITHMS
from fedrec.config.algorithm import about_algorithm, algorithm_of
from fedrec.config.noise import mechanism_of
from fedrec.config.schema import Plan
from fedrec.errors import SettingsError
from fedrec.privacy.gaussian import FEWEST_STEPS
from fedrec.protection import PROTECTIONS
from fedrec.section import Problem

_COUNTS = "users"


def privacy_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what contradicts a plan's privacy: the settings and a sentence."""
    if plan.privacy.mechanism == "none":
        return
    yield from _own_noise(plan)
    yield from _algorithm(plan)
    yield from _update(plan)
    yield from _protection(plan)
    yield from _noise(plan)


def _own_noise(plan: Plan) -> Iterator[Problem]:
    if algorithm_of(plan, 1).upload_noise is not None:
        yield (
            ("privacy.mechanism", "algorithm.name"),
            f"{plan.algorithm.name} is set to put its paper's noise on every upload, and "
            f"privacy.mechanism is {plan.privacy.mechanism!r}: nobody accounts for both together. "
            'Leave the algorithm\'s own noise out, or set privacy.mechanism = "none".',
        )


def _algorithm(plan: Plan) -> Iterator[Problem]:
    reason = about_algorithm(plan).not_under_noise
    if reason:
        able = [name for name, kind in ALGORITHMS.items() if not kind.about.not_under_noise]
        yield (
            ("algorithm.name", "privacy.mechanism"),
            f"algorithm.name = {plan.algorithm.name!r} cannot be trained with "
            f"privacy.mechanism = {plan.privacy.mechanism!r}: {reason}. Set "
            f"algorithm.name to one of {', '.join(able)}.",
        )
        return
    try:
        tensors = algorithm_of(plan, 1).tensors
    except SettingsError:
        # Told with its own keys where all of a plan's sums are planned.
        return
    divisors = [tensor.name for tensor in tensors if not tensor.signed and tensor.name != _COUNTS]
    if divisors:
        yield (
            ("privacy.mechanism", "update.normaliser", "algorithm.name"),
            f"Sums are divided by what users send as {' and '.join(divisors)}, which would tell "
            "about them; under privacy the divisor is the fixed privacy.expected_users. Weigh "
            'users equally: update.normaliser = "item", or the algorithm\'s own weighting by '
            "users.",
        )


def _update(plan: Plan) -> Iterator[Problem]:
    if plan.update.structure in ("svd", "topk") and plan.update.compress == "client":
        yield (
            ("update.compress", "privacy.mechanism"),
            'update.compress is "client", which changes a sum after its users were clipped, so '
            'that nothing bounds what one of them does to it. Set update.compress = "user".',
        )


def _protection(plan: Plan) -> Iterator[Problem]:
    name = plan.protection.name
    if plan.privacy.mechanism == "gaussian" and name == "none":
        yield (
            ("protection.name", "privacy.mechanism"),
            'privacy.mechanism is "gaussian", but protection.name is "none": the coordinator reads '
            "every client's update, on which lies only that client's share of the noise. Set "
            'protection.name = "bfv", or privacy.mechanism = "laplace", whose noise is enough for '
            "each client alone.",
        )
    shares = (plan.privacy.colluding_share, plan.protection.corrupt_share)
    if "protection.corrupt_share" in PROTECTIONS[name].own_settings and shares[0] > shares[1]:
        yield (
            ("privacy.colluding_share", "protection.corrupt_share"),
            f"privacy.colluding_share is {shares[0]:g}, but protection.corrupt_share is "
            f"{shares[1]:g}: against more than that {name} hide no single update, on which lies "
            "only its client's share of the noise. Set protection.corrupt_share = "
            f"{shares[0]:g} or more.",
        )


def _noise(plan: Plan) -> Iterator[Problem]:
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return
    step = plan.update.clip * 2.0**-plan.update.fraction_bits
    if plan.privacy.clip < step:
        yield (
            ("privacy.clip", "update.fraction_bits", "update.clip"),
            f"privacy.clip = {plan.privacy.clip:g} is less than one step of the grid, which is "
            f"update.clip x 2^-update.fraction_bits = {step:.3g}: nothing that a user sends would "
            "be left. Raise privacy.clip or update.fraction_bits.",
        )
        return
    if mechanism.share < FEWEST_STEPS:
        yield (
            ("update.fraction_bits", "privacy.clip", "privacy.noise_multiplier"),
            f"One client's noise is {mechanism.share} steps of the grid, fewer than the "
            f"{FEWEST_STEPS} for which its law is proven. Raise update.fraction_bits, "
            "privacy.clip or privacy.noise_multiplier.",
        )
        # What such noise costs is not known either.
        return
    if mechanism.most_sums == 0:
        yield (
            ("privacy.noise_multiplier", "privacy.epsilon"),
            f"One round costs epsilon {mechanism.epsilon_after(1):.3g}, more than "
            f"privacy.epsilon = {plan.privacy.epsilon:g}, so that no round could open. Raise "
            "privacy.noise_multiplier, or leave it out: 0 takes the least that is enough.",
        )
