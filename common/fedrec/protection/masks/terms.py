"""A round under masks: its steps, the terms that participants must share, and its graph."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import RevealRefused, SettingsError
from fedrec.ids import ClientId, RoundId, digest
from fedrec.protection.round_protocol import COLLECTING, RoundTerms, Step, Steps
from fedrec.protection.settings import Tolerance

FEWEST_CLIENTS = 3
MAX_CLIENTS = 10_000
COMPLETE_BELOW = 32
SECURITY = 2.0**-40
FAILURE = 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParameters:
    """The graph of a round.

    Attributes:
        n_clients: the number of participants.
        degree: k, the number of other clients that hold shares of one client's secrets.
        threshold: t, the number of shares that recover a secret.
        complete: whether all other clients hold shares, and every client also holds one of its own.
        quorum: the number of participants that must sign the same set of survivors before a client
            gives shares. If the coordinator may lie, it exceeds (n + c) / 2 for n participants and
            c corrupt members, so two different sets can't both reach it. Otherwise, it equals
            ``threshold``.
    """

    n_clients: int
    degree: int
    threshold: int
    complete: bool
    quorum: int


@lru_cache(maxsize=256)
def parameters_for(
    n_clients: int, tolerance: Tolerance, *, n_members: int | None = None
) -> GraphParameters:
    """Return the smallest degree that is safe enough, and its threshold.

    Args:
        n_members: the number of the roster's members, to which the corrupt share applies. By
            default, all take part.

    Raises:
        SettingsError: no degree is safe.
    """
    if not FEWEST_CLIENTS <= n_clients <= MAX_CLIENTS:
        raise SettingsError(
            f"Masks need {FEWEST_CLIENTS} to {MAX_CLIENTS} clients, not {n_clients}.",
            remedy="With two clients, each could compute the other's update.",
        )
    # The member to protect is honest.
    corrupt = min(n_clients - 1, tolerance.corrupt_among(max(n_members or 0, n_clients)))
    found = _complete(n_clients, tolerance, corrupt)
    if n_clients >= COMPLETE_BELOW:
        found = _sparse(n_clients, tolerance, corrupt)
    if found is None:
        raise SettingsError(
            f"No graph on {n_clients} clients makes masks safe with {tolerance}. Corrupt clients: "
            f"{corrupt}.",
            remedy=_remedy(tolerance),
        )
    return found


def _complete(n_clients: int, tolerance: Tolerance, corrupt: int) -> GraphParameters | None:
    dropped = tolerance.dropped_among(n_clients)
    power = n_clients + corrupt if tolerance.malicious else 2 * corrupt
    threshold = max(2 * n_clients // 3, power // 2) + 1
    if n_clients - dropped < threshold:
        return None
    return GraphParameters(
        n_clients=n_clients,
        degree=n_clients - 1,
        threshold=threshold,
        complete=True,
        quorum=threshold,
    )


def _sparse(n_clients: int, tolerance: Tolerance, corrupt: int) -> GraphParameters | None:
    dropped = tolerance.dropped_among(n_clients)
    if _needed(tolerance, corrupt / n_clients) > 1:
        return None
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n_clients)))))
    for degree in _degrees(n_clients):
        captured = _tail(log_factorial, degree, corrupt)
        lost = _tail(log_factorial, degree, dropped)
        # The smallest number of corrupt neighbours with a negligible probability.
        count = max(1, int(np.argmax(n_clients * captured <= SECURITY)))
        threshold = -(-(degree + count) // 2) if tolerance.malicious else count
        if threshold <= degree and n_clients * lost[degree - threshold + 1] <= FAILURE:
            quorum = (n_clients + corrupt) // 2 + 1 if tolerance.malicious else threshold
            return GraphParameters(
                n_clients=n_clients,
                degree=degree,
                threshold=threshold,
                complete=False,
                quorum=quorum,
            )
    return None


def _degrees(n_clients: int) -> Iterator[int]:
    """Yield the even degrees, for which regular graphs of any size exist, and lastly all others."""
    yield from range(2, n_clients - 1, 2)
    yield n_clients - 1


def _tail(log_factorial: NDArray[np.float64], degree: int, marked: int) -> NDArray[np.float64]:
    """Return the probabilities of at least 0, 1, ..., degree + 1 marked neighbours.

    Args:
        log_factorial: the logarithms of the factorials of 0 to n - 1.
        degree: the number of neighbours, drawn from the n - 1 others.
        marked: the number of marked ones among the others.
    """

    def log_choose(whole: int, part: NDArray[np.int64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = (
            log_factorial[whole] - log_factorial[part] - log_factorial[whole - part]
        )
        return values

    others = len(log_factorial) - 1
    counts = np.arange(max(0, degree - (others - marked)), min(degree, marked) + 1)
    chances = np.exp(
        log_choose(marked, counts)
        + log_choose(others - marked, degree - counts)
        - log_choose(others, np.array([degree]))
    )
    tail = np.zeros(degree + 2)
    tail[counts] = chances
    return np.cumsum(tail[::-1])[::-1]


def _needed(tolerance: Tolerance, corrupt_share: float) -> float:
    """Return the part of all neighbours that the settings need. Above 1, no size works."""
    if tolerance.malicious:
        return corrupt_share + 2 * tolerance.dropout_share
    return corrupt_share + tolerance.dropout_share


def _remedy(tolerance: Tolerance) -> str:
    rule = "corrupt_share + dropout_share"
    if tolerance.malicious:
        rule = "corrupt_share + 2 x dropout_share"
    return (
        "Lower protection.corrupt_share or protection.dropout_share so that "
        f"{rule} is well below 1, or select more clients for each round."
    )


def ring_neighbours(
    seed: bytes, participants: Sequence[ClientId], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Return every participant's neighbours, as sorted positions in ``participants``.

    Args:
        seed: the public seed, which decides the order of the ring.
        participants: the participants without duplicates. The graph doesn't depend on their order.
        degree: the neighbours of each participant: an even number, or one less than an even number
            of participants.

    Raises:
        SettingsError: no such graph exists.
    """
    return _ring_neighbours(seed, tuple(participants), degree)


@lru_cache(maxsize=2)
def _ring_neighbours(
    seed: bytes, participants: tuple[ClientId, ...], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Make the graph once for all parties in one process, such as a simulation's clients."""
    count = len(participants)
    if not 1 <= degree < count or (degree % 2 and count % 2):
        raise SettingsError(f"{count} clients can't have {degree} neighbours each.")
    ring = sorted(range(count), key=lambda i: digest("fedrec mask graph v1", seed, participants[i]))
    distances = [*range(1, degree // 2 + 1), *range(-(degree // 2), 0)]
    if degree % 2:
        distances.append(count // 2)
    neighbours: list[tuple[int, ...]] = [()] * count
    for place, own in enumerate(ring):
        found = {ring[(place + distance) % count] for distance in distances}
        neighbours[own] = tuple(sorted(found))
    return tuple(neighbours)


def draw_holders(own: int, count: int, degree: int) -> tuple[int, ...]:
    """Return ``degree`` distinct positions below ``count`` other than ``own``, unpredictably."""
    others = [position for position in range(count) if position != own]
    return tuple(sorted(secrets.SystemRandom().sample(others, degree)))


KEYS, SHARES, VECTOR, SIGNATURE, ANSWER = "keys", "shares", "vector", "signature", "answer"

STEPS = Steps(
    (
        Step(name=KEYS, phase=COLLECTING),
        Step(name=SHARES, phase="sharing", refusal="mask_keys_refused"),
        Step(name=VECTOR, phase="masking", brings_vector=True, refusal="mask_inbox_refused"),
        Step(name=SIGNATURE, phase="signing", refusal="survivors_refused"),
        # With enough shares, the coordinator can read the sum even if the round is abandoned.
        Step(name=ANSWER, phase="unmasking", opens_sum=True, refusal="shares_refused"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerms:
    """The identity of a round, and the conditions for unmasking its sum.

    Attributes:
        federation: the federation's name.
        run: the run's name.
        round: the round's number. Keys are made for one round only.
        epoch: the roster's epoch.
        terms_digest: a digest of 32 bytes over the round's other terms: kind, plan, catalogue,
            model. Clients with different terms share no keys.
        minimum_summands: the minimum number of summands of the sum, at least 3.
        n_members: the number of the roster's members. The corrupt share applies to these and not
            to participants, because all corrupt members may be in one list.
        tolerance: the tolerance that decides the graph.
    """

    federation: str
    run: str
    round: RoundId
    epoch: int
    terms_digest: bytes
    minimum_summands: int
    n_members: int
    tolerance: Tolerance

    def __post_init__(self) -> None:
        if len(self.terms_digest) != 32:
            raise SettingsError(f"terms_digest has {len(self.terms_digest)} bytes, not 32.")
        if self.minimum_summands < FEWEST_CLIENTS:
            raise SettingsError(
                f"minimum_summands is {self.minimum_summands}, but a sum of fewer than "
                f"{FEWEST_CLIENTS} updates hides none of them.",
                remedy=f"Set rounds.minimum_summands = {FEWEST_CLIENTS} or more.",
            )

    @classmethod
    def of(cls, terms: RoundTerms, tolerance: Tolerance) -> MaskTerms:
        """Return the terms of a round under masks.

        Args:
            tolerance: the tolerance that decides the graph.
        """
        return cls(
            federation=terms.federation,
            run=terms.run,
            round=terms.round,
            epoch=terms.roster.epoch,
            terms_digest=digest(
                "fedrec mask terms v1",
                terms.kind,
                terms.base_round,
                terms.base_state,
                terms.catalogue_fingerprint,
                terms.plan_fingerprint,
            ),
            minimum_summands=terms.minimum_summands,
            n_members=len(terms.roster.members),
            tolerance=tolerance,
        )

    def graph_of(self, n_listed: int) -> GraphParameters:
        """Return the graph for a list of keys of this length.

        Raises:
            RevealRefused: the list is too short.
            SettingsError: no graph of this many clients is safe under the terms.
        """
        fewest = self.tolerance.fewest_listed(self.minimum_summands, self.n_members)
        if n_listed < fewest:
            corrupt = self.tolerance.corrupt_among(self.n_members)
            raise RevealRefused(
                f"{n_listed} clients take part, but at least {fewest} of {self.n_members} members "
                f"are needed: {self.minimum_summands} for a sum, and {corrupt} that may be corrupt "
                "(protection.corrupt_share).",
                remedy="The round needs more clients. Raise rounds.cells_per_round, or wait until "
                "more are connected.",
            )
        return parameters_for(n_listed, self.tolerance, n_members=self.n_members)

    def parts(self) -> tuple[str | int | bytes, ...]:
        """Return the common prefix of this round's signatures and key derivations."""
        tolerance = self.tolerance
        return (
            self.federation,
            self.run,
            self.round,
            self.epoch,
            self.terms_digest,
            self.minimum_summands,
            self.n_members,
            tolerance.corrupt_share.hex(),
            tolerance.dropout_share.hex(),
            int(tolerance.malicious),
        )


def ring_seed(terms: RoundTerms) -> bytes:
    """Return the public seed of a round's ring of neighbours."""
    return digest("fedrec mask ring v1", terms.seed, terms.run, terms.round)
