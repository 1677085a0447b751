"""A round under masks: its steps, what participants must have been told alike, and its graph."""

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
        n_clients: participants.
        degree: k, how many other clients hold shares of one client's secrets.
        threshold: t, how many shares give a secret back.
        complete: whether all others hold shares, and every client one of its own.
        quorum: signatures, of all participants, without which nobody gives shares. Where the
            coordinator may lie they are more than half of all and the corrupt ones together, so
            that no two sets of survivors find enough; else the neighbours' own threshold does.
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
    """Return the smallest degree that is safe enough, and the threshold that goes with it.

    Args:
        n_members: of the roster, of whom the corrupt share is; by default all take part.

    Raises:
        SettingsError: where there is none; the remedy says what would do.
    """
    if not FEWEST_CLIENTS <= n_clients <= MAX_CLIENTS:
        raise SettingsError(
            f"Masks need {FEWEST_CLIENTS} to {MAX_CLIENTS} clients, not {n_clients}.",
            remedy="With two, each could compute the other's update.",
        )
    # The member that is to be protected is honest.
    corrupt = min(n_clients - 1, tolerance.corrupt_among(max(n_members or 0, n_clients)))
    found = _complete(n_clients, tolerance, corrupt)
    if n_clients >= COMPLETE_BELOW:
        found = _sparse(n_clients, tolerance, corrupt)
    if found is None:
        raise SettingsError(
            f"No graph on {n_clients} clients withstands {tolerance}: {corrupt} of them corrupt.",
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
        # The smallest count of corrupt neighbours that practically never comes about.
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
    """Yield even degrees, which regular graphs of any size have, and at last all others."""
    yield from range(2, n_clients - 1, 2)
    yield n_clients - 1


def _tail(log_factorial: NDArray[np.float64], degree: int, marked: int) -> NDArray[np.float64]:
    """Return the chances of at least 0, 1, ..., degree + 1 marked ones among the neighbours.

    Args:
        log_factorial: of 0 to n - 1.
        degree: neighbours drawn from the n - 1 others.
        marked: how many of the others are marked.
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
    """Return what the shares need of all neighbours; nothing works above 1, whatever the size."""
    if tolerance.malicious:
        return corrupt_share + 2 * tolerance.dropout_share
    return corrupt_share + tolerance.dropout_share


def _remedy(tolerance: Tolerance) -> str:
    rule = "corrupt_share + dropout_share"
    if tolerance.malicious:
        rule = "corrupt_share + 2 x dropout_share"
    return f"Lower the shares, so that {rule} is well below 1, or ask more clients."


def ring_neighbours(
    seed: bytes, participants: Sequence[ClientId], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Return every participant's neighbours, as sorted positions in ``participants``.

    Args:
        seed: public; it decides the order of the ring.
        participants: without repetition; the graph does not depend on their order.
        degree: neighbours of each; even, or one less than the even number of participants.

    Raises:
        SettingsError: when no such graph exists.
    """
    return _ring_neighbours(seed, tuple(participants), degree)


@lru_cache(maxsize=2)
def _ring_neighbours(
    seed: bytes, participants: tuple[ClientId, ...], degree: int
) -> tuple[tuple[int, ...], ...]:
    """Make the graph once for all who ask in one process, such as a simulation's clients."""
    count = len(participants)
    if not 1 <= degree < count or (degree % 2 and count % 2):
        raise SettingsError(f"{count} clients cannot have {degree} neighbours each.")
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
        # With enough shares the coordinator can read the sum, also where the round is given up.
        Step(name=ANSWER, phase="unmasking", opens_sum=True, refusal="shares_refused"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerms:
    """Names one round, and the conditions on which its sum may be unmasked.

    Attributes:
        federation: the federation's name.
        run: the run's name.
        round: the round's number; keys are made for one round only.
        epoch: the roster's epoch.
        terms_digest: 32 bytes that stand for everything else a client was told of the round:
            kind, plan, catalogue, model. Clients that were told different things share no keys.
        minimum_summands: the sum has at least so many summands, never fewer than 3.
        n_members: members of the roster. The corrupt share is of these and not of those that take
        part: all
            corrupt ones may be in one list.
        tolerance: decides the graph.
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
            tolerance: decides the graph.
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
        """Return the graph of a list of so many keys.

        Raises:
            RevealRefused: when the list is too short.
            SettingsError: when no graph of so many clients withstands what the terms say.
        """
        fewest = self.tolerance.fewest_listed(self.minimum_summands, self.n_members)
        if n_listed < fewest:
            corrupt = self.tolerance.corrupt_among(self.n_members)
            raise RevealRefused(
                f"{n_listed} clients take part, expected at least {fewest} of {self.n_members} "
                f"members: {self.minimum_summands} for a sum, and {corrupt} that may be corrupt "
                "(protection.corrupt_share).",
                remedy="The round needs more clients: raise rounds.cells_per_round, or wait until "
                "more are there.",
            )
        return parameters_for(n_listed, self.tolerance, n_members=self.n_members)

    def parts(self) -> tuple[str | int | bytes, ...]:
        """Return what signatures and key derivations of this round cover first."""
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
