"""What a plan's noise promises and costs, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.config.noise import mechanism_of
from fedrec.config.schema import Plan
from fedrec.planning.statements import privacy_statements
from fedrec.privacy import Mechanism
from fedrec.protection import PROTECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPrice:
    """What `[privacy]` comes to.

    Attributes:
        epsilon: of a user after the planned rounds, at delta.
        epsilon_of_one_round: of a user who takes part once.
        epsilon_coordinator: of a user after the planned rounds, against the coordinator alone.
        epsilon_with_one_client: the same against it and one client, who knows its own noise
            and, where `opens_updates`, reads single updates.
        opens_updates: whether a coordinator and one client can open single updates.
        rounds_per_user: most rounds that count for a user.
        rounds_allowed: training rounds within the budget; None for all.
        noise_multiplier: standard deviation of a sum's noise over the clip.
        deviation: of the noise of every value of a sum, in the model's units.
        deviation_of_mean: the same after division by privacy.expected_users.
        clip: largest length of a user's contribution, in the model's units.
        honest_clients: whose shares a sum has at least.
        statements: what is promised and what is not.
    """

    mechanism: str
    epsilon: float
    delta: float
    epsilon_of_one_round: float
    epsilon_coordinator: float
    epsilon_with_one_client: float
    opens_updates: bool
    rounds_per_user: int
    rounds_allowed: int | None
    noise_multiplier: float
    deviation: float
    deviation_of_mean: float
    clip: float
    honest_clients: int
    statements: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Return it as rows for people."""
        allowed = "all planned rounds"
        if self.rounds_allowed is not None:
            allowed = f"{self.rounds_allowed} training rounds; then the run ends"
        return [
            ("mechanism", self.mechanism),
            (
                "epsilon",
                f"{self.epsilon:.4g} at delta {self.delta:g}, after {self.rounds_per_user} rounds "
                f"of a user; {self.epsilon_of_one_round:.4g} after one",
            ),
            ("against the coordinator", f"epsilon {self.epsilon_coordinator:.4g}"),
            (
                "and one client with it",
                f"epsilon {self.epsilon_with_one_client:.4g}"
                + (", of single updates, which they can open" if self.opens_updates else ""),
            ),
            ("within the budget", allowed),
            (
                "noise of a sum",
                f"{self.deviation:.4g} (standard deviation of every value); the clip is "
                f"{self.clip:.4g} for a user's whole contribution, {self.noise_multiplier:.4g} "
                "times less",
            ),
            ("noise of a mean", f"{self.deviation_of_mean:.4g} in every value of the model"),
            ("relied upon", f"the noise of {self.honest_clients} clients"),
            *(("", sentence) for sentence in self.statements),
        ]


def privacy_price(plan: Plan, n_items: int) -> PrivacyPrice | None:
    """Return what a plan's privacy comes to; None where it asks for none."""
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return None
    total = plan.rounds.total
    rounds = total if mechanism.most_sums is None else min(total, mechanism.most_sums)
    step = plan.update.clip * 2.0**-plan.update.fraction_bits
    alone, helped = _unknown_shares(plan, mechanism)
    return PrivacyPrice(
        mechanism=mechanism.kind,
        epsilon=mechanism.epsilon_after(rounds),
        delta=mechanism.delta,
        epsilon_of_one_round=mechanism.epsilon_after(1),
        epsilon_coordinator=mechanism.epsilon_under(alone, rounds),
        epsilon_with_one_client=mechanism.epsilon_under(helped, rounds),
        opens_updates=_opens_updates(plan),
        rounds_per_user=min(rounds, mechanism.rounds_per_user),
        rounds_allowed=None if rounds == total else rounds,
        noise_multiplier=mechanism.deviation / mechanism.bound,
        deviation=mechanism.deviation * step,
        deviation_of_mean=mechanism.deviation * step / mechanism.divisor,
        clip=mechanism.bound * step,
        honest_clients=mechanism.noisy,
        statements=privacy_statements(plan, rounds, n_items),
    )


def _opens_updates(plan: Plan) -> bool:
    """Tell whether one client that helps the coordinator is enough to open a single update.

    It is where every client has the key, and where sums carry no tags, so that it takes others'
    ciphertexts off them.
    """
    kind = PROTECTIONS[plan.protection.name]
    return kind.needs_reveal and (not plan.authority_opens or not kind.can_tag)


def _unknown_shares(plan: Plan, mechanism: Mechanism) -> tuple[int, int]:
    """Return how many shares of noise the coordinator does not know; alone, and with a client."""
    return mechanism.clients, 1 if _opens_updates(plan) else max(1, mechanism.clients - 1)


def privacy_warnings(plan: Plan, n_users: int) -> list[str]:
    """Return what somebody who chose these numbers should know."""
    mechanism, asked = mechanism_of(plan), plan.privacy
    if mechanism is None:
        return []
    found = []
    if mechanism.epsilon > 10:
        found.append(
            f"privacy.epsilon is {mechanism.epsilon:g}: an attacker that guesses whether a user "
            "took part may be right almost always. Promises that mean something are below 10."
        )
    if n_users and mechanism.delta > 1.0 / n_users:
        found.append(
            f"privacy.delta is {mechanism.delta:g}, more than one in {n_users} users, who are in "
            f"data.path: a mechanism that shows one of them would keep it. Set it below "
            f"{0.1 / n_users:.1g}."
        )
    if mechanism.most_sums is not None and mechanism.most_sums < plan.rounds.total:
        found.append(
            f"Of {plan.rounds.total} training rounds the budget pays for {mechanism.most_sums}; "
            "then the run ends (exit code 4). Raise privacy.noise_multiplier, or leave it out."
        )
    fraction = plan.rounds.user_fraction
    if mechanism.rounds_per_user < plan.rounds.total * fraction:
        found.append(
            f"A user takes part in {mechanism.rounds_per_user} rounds at most "
            f"(privacy.rounds_per_user), and with rounds.user_fraction = {fraction:g} has done so "
            f"after about {mechanism.rounds_per_user / fraction:.0f} of {plan.rounds.total}; later "
            f"sums are noise alone. Set rounds.user_fraction to "
            f"{mechanism.rounds_per_user / plan.rounds.total:.2g}."
        )
    if asked.mechanism == "gaussian" and _opens_updates(plan):
        found.append(
            "One client that helps the coordinator opens single updates, on each of which lies one "
            "client's share of the noise: privacy.epsilon does not hold against the two. It does "
            'with protection.name = "bfv" and protection.key_holder = "authority", with "masks", '
            'and with privacy.mechanism = "laplace".'
        )
    if asked.mechanism == "laplace":
        found.append(
            "Laplace noise is there for comparison with papers: for the same epsilon a sum has "
            "more of it, by the square root of twice the number of clients and more."
        )
    return found
