"""A plan's privacy: its promises and their assumptions, its valid combinations and its price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.declarations import NoiseProposal
from fedrec.errors import SettingsError
from fedrec.plan.algorithm import about_algorithm, algorithm_of, noise_of
from fedrec.plan.layout import Layout
from fedrec.plan.planned_noise import is_one_release, mechanism_of
from fedrec.plan.protections import Price, about_protection
from fedrec.plan.schema import Plan
from fedrec.privacy import Mechanism
from fedrec.privacy.noise import FEWEST_STEPS
from fedrec.protection import PROTECTIONS
from fedrec.section import Problem

_COUNTS = "users"


def privacy_problems(plan: Plan) -> Iterator[Problem]:
    """Yield contradictions to a plan's privacy, as settings and a sentence."""
    if plan.privacy.mechanism == "none":
        return
    yield from _own_noise(plan)
    yield from _one_release(plan)
    yield from _algorithm(plan)
    yield from _update(plan)
    yield from _protection(plan)
    yield from _noise(plan)


def _own_noise(plan: Plan) -> Iterator[Problem]:
    if algorithm_of(plan, 1).upload_noise is not None:
        yield (
            ("privacy.mechanism", "algorithm.name"),
            f"{plan.algorithm.name} is set to add its paper's noise to every upload, and "
            f"privacy.mechanism is {plan.privacy.mechanism!r}. There is no accounting for both "
            "together. Omit the algorithm's own noise, or set privacy.mechanism = "
            '"none".',
        )


def _one_release(plan: Plan) -> Iterator[Problem]:
    if is_one_release(plan) and not plan.privacy.is_default("rounds_per_user"):
        yield (
            ("privacy.rounds_per_user", "algorithm.name"),
            f"privacy.rounds_per_user is {plan.privacy.rounds_per_user}, but all rounds of "
            f"{plan.algorithm.name} are parts of one release. Every user takes part in all of "
            "them. Omit it.",
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
        # If all sums of a plan are planned, the error has its own keys.
        return
    divisors = [tensor.name for tensor in tensors if not tensor.signed and tensor.name != _COUNTS]
    if divisors:
        yield (
            ("privacy.mechanism", "update.normaliser", "algorithm.name"),
            f"Sums are divided by {' and '.join(divisors)}, which users send and which would "
            "reveal something about them. Under privacy the divisor is the fixed "
            'privacy.expected_users. Weight users equally: update.normaliser = "item", or the '
            "algorithm's own weighting by users.",
        )


def _update(plan: Plan) -> Iterator[Problem]:
    if plan.update.structure in ("svd", "topk") and plan.update.compress == "client":
        yield (
            ("update.compress", "privacy.mechanism"),
            'update.compress is "client", which changes a sum after its users were clipped, so '
            'that the influence of one user is unbounded. Set update.compress = "user".',
        )


def _protection(plan: Plan) -> Iterator[Problem]:
    name = plan.protection.name
    if plan.privacy.mechanism == "gaussian" and name == "none":
        yield (
            ("protection.name", "privacy.mechanism"),
            'privacy.mechanism is "gaussian", but protection.name is "none": the coordinator '
            "reads every client's update, which carries only that client's share of the noise. "
            'Set protection.name = "bfv", or privacy.mechanism = "laplace", whose noise is enough '
            "for each client alone.",
        )
    shares = (plan.privacy.colluding_share, plan.protection.corrupt_share)
    if "protection.corrupt_share" in about_protection(name).own_settings and shares[0] > shares[1]:
        yield (
            ("privacy.colluding_share", "protection.corrupt_share"),
            f"privacy.colluding_share is {shares[0]:g}, but protection.corrupt_share is "
            f"{shares[1]:g}: with more corrupt clients {name} do not hide a single update, which "
            "carries only its client's share of the noise. Set protection.corrupt_share = "
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
            f"update.clip x 2^-update.fraction_bits = {step:.3g}. Everything that a user sends "
            "would be rounded to zero. Raise privacy.clip or update.fraction_bits.",
        )
        return
    if mechanism.share < FEWEST_STEPS:
        yield (
            ("update.fraction_bits", "privacy.clip", "privacy.noise_multiplier"),
            f"One client's noise is {mechanism.share} steps of the grid, fewer than the "
            f"{FEWEST_STEPS} for which its distribution is proven. Raise update.fraction_bits, "
            "privacy.clip or privacy.noise_multiplier.",
        )
        # The cost of such noise is not known either.
        return
    if mechanism.most_sums == 0:
        yield (
            ("privacy.noise_multiplier", "privacy.epsilon"),
            f"One round costs epsilon {mechanism.epsilon_after(1):.3g}, more than privacy.epsilon "
            f"= {plan.privacy.epsilon:g}, so no round could open. Raise privacy.noise_multiplier, "
            "or omit it to use the smallest value within the budget.",
        )


NO_DIFFERENTIAL_PRIVACY = (
    "No differential privacy: no noise was added, so there is no epsilon. Exact sums over all "
    "participating users were released. A user's values are clipped to a public range, which "
    "bounds an influence but hides nothing. A party that knows all other users' data can compute "
    "the last user's from a sum."
)
NOT_COVERED = (
    "Not covered: which clients took part and when, how long they took, message sizes (all "
    "equal), the settings, and that training may stop with an error. Item counts and metrics are "
    "not released at all: they are zero in every sum.",
    "Not covered: what a user's own client knows and shows, the figures that a simulation prints, "
    "and other runs on the same data, which each client counts in its own ledger.",
)
_ONE_RELEASE = (
    "All rounds of {name} are parts of one release: a user's contributions to all of them together "
    "are clipped once, and the user's history is frozen at the first part. A part that is drawn "
    "again counts as another release."
)
_GAUSSIAN = (
    "User-level differential privacy with Gaussian noise: epsilon {epsilon:.4g} at delta "
    "{delta:g} for a user in {rounds} noisy sums, the most that privacy.rounds_per_user allowed. "
    "Neighbouring federations differ in one user's whole data, present or absent. No "
    "amplification by sampling is claimed."
)
_WHO_ADDED = (
    "It holds against every reader of sums: each sum has noise of standard deviation "
    "{deviation:.4g} times the clip, from at least {noisy} honest clients. It does not hold "
    "against the user's own client, nor against clients that collude and leave fewer honest ones."
)
_LAPLACE = (
    "User-level differential privacy with Laplace noise as in papers: epsilon {epsilon:.4g} at "
    "delta {delta:g} for a user in {rounds} noisy sums. The clip bounds the L2 norm, so the noise "
    "does not give a pure epsilon of clip / scale = {nominal:.4g} a round: over the {length} "
    "values of an update the pure epsilon of one round is {pure:.4g}. The stated epsilon follows "
    "from concentrated differential privacy."
)
_LAPLACE_WHO = (
    "Every client's noise is enough by itself, so the guarantee also holds against the "
    "coordinator, whatever other clients do."
)
_AUTHORITY = (
    "Under {name} the coordinator sees ciphertexts and metric sums of opened rounds. The key "
    "authority alone holds the secret key and opens sums, so it can read every message if it "
    "colludes with the coordinator. Members have no key that opens one."
)
_HONEST_MEMBERS = (
    "Under {name} all clients are assumed to be honest, as in the papers. Its sums carry no tags, "
    "so the coordinator and one client with changed software can add negated or multiplied "
    "ciphertexts of others. Then a single update can be what the authority opens. Under "
    'protection.name = "bfv" it detects that.'
)


def trust_statement(plan: Plan) -> str:
    """Return which party can read what under a plan's protection, and which are assumed honest."""
    name = plan.protection.name
    if not plan.authority_opens:
        return about_protection(name).statement
    return " ".join((_AUTHORITY.format(name=name), *honesty_statements(plan)))


def honesty_statements(plan: Plan) -> tuple[str, ...]:
    """Return the caveats of opening sums without tags at the authority, or ()."""
    kind = PROTECTIONS[plan.protection.name]
    if not plan.authority_opens or kind.can_tag:
        return ()
    return (_HONEST_MEMBERS.format(name=kind.name),)


def privacy_statements(plan: Plan, n_sums: int, n_items: int = 0) -> tuple[str, ...]:
    """Return the promises and limits of a plan's noisy sums, or () if it adds no noise.

    Args:
        n_sums: noisy sums, or releases if they are parts (`Mechanism.releases`).
    """
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return ()
    rounds = min(n_sums, mechanism.rounds_per_user)
    spent = {"epsilon": mechanism.epsilon_after(n_sums), "delta": mechanism.delta, "rounds": rounds}
    if mechanism.kind == "gaussian":
        who = _WHO_ADDED.format(
            deviation=mechanism.deviation / mechanism.bound, noisy=mechanism.noisy
        )
        parts = (_ONE_RELEASE.format(name=plan.algorithm.name),) if mechanism.in_parts else ()
        return (_GAUSSIAN.format(**spent), *parts, who, *NOT_COVERED)
    length = Layout.of(plan, max(1, n_items)).change_slice.stop
    nominal = mechanism.bound / mechanism.share
    pure = math.sqrt(length) * nominal
    text = _LAPLACE.format(**spent, nominal=nominal, length=length, pure=pure)
    return (text, _LAPLACE_WHO, *NOT_COVERED)


def privacy_price(plan: Plan, n_items: int) -> Price[Mapping[str, object]] | None:
    """Return the price of a plan's privacy, or None if it adds no noise.

    Returns:
        Rows for people, and these facts:

        - epsilon: of a user after the planned rounds, at delta.
        - epsilon_of_one_round: of a user with one round.
        - epsilon_coordinator: of a user after the planned rounds, against the coordinator alone.
        - epsilon_with_one_client: the same against it and one client, which knows its own noise
          and, if `opens_updates`, reads single updates.
        - opens_updates: whether a coordinator and one client can open single updates.
        - rounds_per_user: most rounds that count for a user.
        - rounds_allowed: training rounds within the budget. None for all.
        - noise_multiplier: standard deviation of a sum's noise over the clip.
        - deviation: of the noise of every value of a sum, in the model's units.
        - deviation_of_mean: the same after division by privacy.expected_users.
        - clip: largest length of a user's contribution, in the model's units.
        - honest_clients: whose shares a sum has at least.
        - statements: the promises and their limits.
    """
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return None
    total = mechanism.releases(plan.rounds.total, plan.rounds.total)
    rounds = total if mechanism.most_sums is None else min(total, mechanism.most_sums)
    step = plan.update.clip * 2.0**-plan.update.fraction_bits
    alone, helped = _unknown_shares(plan, mechanism)
    epsilon, once = mechanism.epsilon_after(rounds), mechanism.epsilon_after(1)
    against_it = mechanism.epsilon_under(alone, rounds)
    with_one = mechanism.epsilon_under(helped, rounds)
    opens, counted = _opens_updates(plan), min(rounds, mechanism.rounds_per_user)
    multiplier, deviation = mechanism.deviation / mechanism.bound, mechanism.deviation * step
    mean, clip = deviation / mechanism.divisor, mechanism.bound * step
    statements = privacy_statements(plan, rounds, n_items)
    allowed = f"{rounds} training rounds, after which the run ends"
    return Price(
        facts={
            "mechanism": mechanism.kind,
            "epsilon": epsilon,
            "delta": mechanism.delta,
            "epsilon_of_one_round": once,
            "epsilon_coordinator": against_it,
            "epsilon_with_one_client": with_one,
            "opens_updates": opens,
            "rounds_per_user": counted,
            "rounds_allowed": None if rounds == total else rounds,
            "noise_multiplier": multiplier,
            "deviation": deviation,
            "deviation_of_mean": mean,
            "clip": clip,
            "honest_clients": mechanism.noisy,
            "statements": statements,
        },
        rows=(
            ("mechanism", mechanism.kind),
            (
                "epsilon",
                f"{epsilon:.4g} at delta {mechanism.delta:g}, after {counted} rounds of a user, "
                f"{once:.4g} after one",
            ),
            ("against the coordinator", f"epsilon {against_it:.4g}"),
            (
                "and one client with it",
                f"epsilon {with_one:.4g}" + ", of single updates, which they can open" * opens,
            ),
            ("within the budget", "all planned rounds" if rounds == total else allowed),
            (
                "noise of a sum",
                f"{deviation:.4g} (standard deviation of every value). The clip is {clip:.4g} for "
                f"a user's whole contribution, {multiplier:.4g} times less",
            ),
            ("noise of a mean", f"{mean:.4g} in every value of the model"),
            ("relied upon", f"the noise of {mechanism.noisy} clients"),
            *(("", sentence) for sentence in statements),
        ),
    )


def noise_proposal(plan: Plan, n_items: int, n_users: float) -> NoiseProposal | None:
    """Propose settings for a plan's epsilon and clients, or None without Gaussian noise.

    Args:
        n_users: users of the federation.
    """
    if plan.privacy.mechanism != "gaussian" or not n_items:
        return None
    asked = plan.privacy.model_copy(
        update={"expected_users": float(n_users), "rounds_per_user": 10, "noise_multiplier": 0.0}
    )
    for kind in ALGORITHMS.values():
        if kind.about.advice.noise_proposal is not None:
            changes = {"algorithm": kind.settings_type.model_construct(name=kind.name)}
            noise = noise_of(plan.model_copy(update={**changes, "privacy": asked}))
            return None if noise is None else kind.about.advice.noise_proposal(n_items, noise)
    return None


def _opens_updates(plan: Plan) -> bool:
    """Return whether the coordinator and one client together can open a single update.

    They can if every client has the key. They can also if sums carry no tags, because the client
    can then remove others' ciphertexts.
    """
    kind = PROTECTIONS[plan.protection.name]
    return kind.needs_reveal and (not plan.authority_opens or not kind.can_tag)


def _unknown_shares(plan: Plan, mechanism: Mechanism) -> tuple[int, int]:
    """Return how many shares of noise the coordinator does not know, alone and with one client."""
    return mechanism.clients, 1 if _opens_updates(plan) else max(1, mechanism.clients - 1)


def few_clients_warnings(plan: Plan, n_clients: int) -> list[str]:
    """Return a warning if so few clients can't make a plan's Gaussian noise together.

    Args:
        n_clients: clients of the federation, or 0 if unknown.
    """
    needed = plan.fewest_summands
    if plan.privacy.mechanism != "gaussian" or not 0 < n_clients < needed:
        return []
    reason = (
        "A single client knows its own sum, and no honest client adds noise to it."
        if n_clients == 1
        else "At least one may collude (privacy.colluding_share), and the others' noise is less "
        "than privacy.epsilon needs."
    )
    return [
        f"--clients is {n_clients}, but under privacy.mechanism a federation of this plan needs "
        f"{needed} clients. {reason} A simulation adds the noise of {needed} all the same."
    ]


def privacy_warnings(plan: Plan, n_users: int, n_clients: int = 0) -> list[str]:
    """Return warnings for a person that chose these numbers."""
    mechanism, asked = mechanism_of(plan), plan.privacy
    if mechanism is None:
        return []
    found = few_clients_warnings(plan, n_clients)
    if mechanism.epsilon > 10:
        found.append(
            f"privacy.epsilon is {mechanism.epsilon:g}: an attacker that guesses whether a user "
            "took part may be right almost always. Meaningful values are below 10."
        )
    if n_users and mechanism.delta > 1.0 / n_users:
        found.append(
            f"privacy.delta is {mechanism.delta:g}, more than 1 in {n_users}, the number of users "
            "in data.path. A mechanism that reveals one of them would satisfy it. Set it below "
            f"{0.1 / n_users:.1g}."
        )
    planned = mechanism.releases(plan.rounds.total, plan.rounds.total)
    if mechanism.most_sums is not None and mechanism.most_sums < planned:
        found.append(
            f"The budget pays for {mechanism.most_sums} of {plan.rounds.total} training rounds, "
            "then the run ends (exit code 4). Raise privacy.noise_multiplier, or omit it."
        )
    fraction = plan.rounds.user_fraction
    if mechanism.rounds_per_user < plan.rounds.total * fraction:
        found.append(
            f"A user takes part in at most {mechanism.rounds_per_user} rounds "
            f"(privacy.rounds_per_user). With rounds.user_fraction = {fraction:g} this limit is "
            f"reached after about {mechanism.rounds_per_user / fraction:.0f} of "
            f"{plan.rounds.total} rounds, and later sums are only noise. Set rounds.user_fraction "
            f"to {mechanism.rounds_per_user / plan.rounds.total:.2g}."
        )
    if asked.mechanism == "gaussian" and _opens_updates(plan):
        found.append(
            "If one client colludes with the coordinator, the two can open single updates, each "
            "with one client's share of the noise. privacy.epsilon does not hold against them. It "
            'does with protection.name = "bfv" and protection.key_holder = "authority", with '
            '"masks", and with privacy.mechanism = "laplace".'
        )
    if asked.mechanism == "laplace":
        found.append(
            "Use Laplace noise only to compare with papers. For the same epsilon, the noise of a "
            "sum is larger, at least by the square root of twice the number of clients."
        )
    return found
