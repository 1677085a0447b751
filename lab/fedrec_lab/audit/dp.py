"""A canary audit of the noise: attack the mechanism in its worst case.

The worst case is repeated many times, with the code that clients run. A canary is among the users
or not. Its whole contribution is one value that no other user touches, and the attacker looks at
that value of the sum. The attacker's success rate bounds epsilon from below: for every event S, P(S
| present) <= exp(epsilon) P(S | absent) + delta, and the other way round. The confidence is that of
Clopper and Pearson's intervals. A lower bound above the guarantee refutes it. A lower bound below
it proves nothing.

Gaussian noise guarantees an epsilon for every delta. Several are tested, because few trials show
little at a small delta and much at a large one.

If all sums of a run are parts of one release, the canary is a user with all items of a small
catalogue. Its contribution x to every part is what a client computes, and the attacker looks at the
inner product of x / |x| and the noisy sums of all parts. If the noise is Gaussian, no other value
tells more, and the guarantee of all parts together is mu-GDP: for every event S, with the normal
distribution function Phi,

    Phi^-1(P(S | present)) - Phi^-1(P(S | absent)) <= mu.

S is that the inner product exceeds |x| / 2. The lower bound of mu that follows is converted into an
epsilon for each delta, as the guarantee's mu is (Nasr et al., "Tight Auditing of Differentially
Private Machine Learning", 2023). It comes nearer to the guarantee than a bound for any noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedrec.data import UserSplit
from fedrec.errors import SettingsError
from fedrec.ids import UserId
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.privacy.clipping import clipped_to
from fedrec.privacy.mechanism import Mechanism, Spent
from fedrec.training.learner import Learner

Release = Callable[[Layout, Sequence[NDArray[np.int64]]], NDArray[np.int64]]
"""A function that makes the noisy sum of clients' exact vectors, or of one part of a release."""

DELTAS = (1e-3, 1e-2, 1e-1)
_N_ITEMS = 2
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedDelta:
    """One delta: the guarantee for a release, and the least that the attacker achieved."""

    delta: float
    claimed: float
    audited: float

    @property
    def holds(self) -> bool:
        """Return whether the guarantee was not refuted."""
        return self.audited <= self.claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReport:
    """The audit of one noisy sum, or of a release in parts.

    Attributes:
        trials: the number of releases with the canary, and as many without.
        parts: the sums of a release to which the canary contributes.
        assumes_gaussian: whether the lower bounds hold for Gaussian noise only.
        confidence: the confidence of all lower bounds together.
        present, absent: the mean of the attacked value, in units of the clip.
        deviation: its standard deviation without the canary, in units of the clip.
    """

    trials: int
    parts: int
    assumes_gaussian: bool
    confidence: float
    present: float
    absent: float
    deviation: float
    findings: tuple[AuditedDelta, ...]

    @property
    def holds(self) -> bool:
        """Return whether no guarantee was refuted."""
        return all(finding.holds for finding in self.findings)


def audit_noise(
    plan: Plan,
    *,
    trials: int = 1000,
    confidence: float = 0.99,
    release: Release | None = None,
) -> CanaryReport:
    """Attack the sum of one training round under a plan, or the release of which it is a part.

    Args:
        trials: the number of releases with the canary, and as many without. Half of them choose the
            attack, except on a release in parts.
        release: makes a sum from clients' vectors. By default, as the product does.

    Raises:
        SettingsError: the plan has no noise.
    """
    layout = Layout.of(plan, _N_ITEMS)
    mechanism = layout.mechanism
    if mechanism is None:
        raise SettingsError(
            'privacy.mechanism is "none": there is no noise to audit.',
            remedy='Set privacy.mechanism = "gaussian".',
        )
    makes = noisy_sum if release is None else release
    canary = _canary_in_parts(plan) if mechanism.in_parts else [_canary(layout, mechanism)]
    absent = _observed(layout, makes, canary, trials, present=False)
    present = _observed(layout, makes, canary, trials, present=True)
    deltas = (plan.privacy.delta, *(delta for delta in DELTAS if delta > plan.privacy.delta))
    assumes_gaussian = mechanism.in_parts and mechanism.kind == "gaussian"
    if assumes_gaussian:
        shown = _least_spent(present, absent, _length(canary) / 2.0, 1.0 - confidence)
        audited = [shown.epsilon(delta) for delta in deltas]
    else:
        # Each delta is tested in both directions, and each direction uses two intervals.
        error = (1.0 - confidence) / (4 * len(deltas))
        audited = [
            max(_bound(present, absent, delta, error), _bound(-absent, -present, delta, error))
            for delta in deltas
        ]
    unit = float(mechanism.bound)
    return CanaryReport(
        trials=trials,
        parts=len(canary),
        assumes_gaussian=assumes_gaussian,
        confidence=confidence,
        present=float(present.mean()) / unit,
        absent=float(absent.mean()) / unit,
        deviation=float(absent.std()) / unit,
        findings=tuple(
            AuditedDelta(delta=delta, claimed=_claimed(mechanism, delta), audited=found)
            for delta, found in zip(deltas, audited, strict=True)
        ),
    )


def noisy_sum(layout: Layout, vectors: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the noisy sum of clients' messages."""
    total = np.zeros(layout.length, dtype=np.int64)
    for vector in vectors:
        total += layout.add_noise(vector)
    return total


@cache
def clopper_pearson(hits: int, trials: int, error: float) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds of a proportion. Each is wrong with chance `error`."""
    low = 0.0 if hits == 0 else _solve(lambda p: _tail(hits, trials, p) > error)
    high = 1.0 if hits == trials else _solve(lambda p: 1.0 - _tail(hits + 1, trials, p) < error)
    return low, high


def _claimed(mechanism: Mechanism, delta: float) -> float:
    return replace(mechanism, delta=delta).epsilon_after(1)


def _canary(layout: Layout, mechanism: Mechanism) -> NDArray[np.int64]:
    """Return a change of twice the clip before clipping, in a row that no user touches."""
    change = np.zeros(layout.change_slice.stop, dtype=np.int64)
    change[np.nonzero(layout.noisy)[0][-1]] = 2 * mechanism.bound
    return clipped_to(change, mechanism.bound)[0]


def _canary_in_parts(plan: Plan) -> list[NDArray[np.int64]]:
    """Return the change of a user with all items in each part of a release.

    The versions between the parts are those of sums without noise. With so few items, all rows
    travel in either case.
    """
    learner = Learner(plan, _N_ITEMS, device="cpu")
    nothing = np.full(1, -1, dtype=np.int64)
    user = UserSplit(
        user_ids=(UserId("canary"),),
        train_indptr=np.array([0, _N_ITEMS], dtype=np.int64),
        train_items=np.arange(_N_ITEMS, dtype=np.int64),
        validation_items=nothing,
        test_items=nothing,
    )
    server, private = learner.server, learner.local.initial_private(user)
    shared = server.initial_shared()
    counted = learner.contribute("count", 0, shared, user, private).vector
    shared, found = server.apply("count", 0, shared, counted), []
    for number in range(1, plan.rounds.total + 1):
        vector = learner.contribute("train", number, shared, user, private).vector
        change = vector[server.layout.change_slice]
        if not change.any():
            break
        found.append(change)
        shared = server.apply("train", number, shared, vector)
    return found


def _length(canary: Sequence[NDArray[np.int64]]) -> float:
    return float(np.linalg.norm(np.concatenate(canary).astype(np.float64)))


def _observed(
    layout: Layout,
    release: Release,
    canary: Sequence[NDArray[np.int64]],
    trials: int,
    *,
    present: bool,
) -> NDArray[np.float64]:
    """Return the attacked value of many releases: the part of their sums along the canary's."""
    mechanism = layout.mechanism
    assert mechanism is not None
    length, found = _length(canary), np.zeros(trials)
    for change in canary:
        vectors = [np.zeros(layout.length, dtype=np.int64) for _ in range(mechanism.noisy)]
        if present:
            vectors[0][layout.change_slice] = change
        for trial in range(trials):
            found[trial] += release(layout, vectors)[layout.change_slice] @ (change / length)
    return found


def _least_spent(
    present: NDArray[np.float64], absent: NDArray[np.float64], threshold: float, error: float
) -> Spent:
    """Return the least cost of a release with Gaussian noise (see the module's docstring)."""
    trials, normal = len(present), NormalDist()
    hits, misses = int((present > threshold).sum()), int((absent > threshold).sum())
    low = clopper_pearson(hits, trials, error / 2.0)[0]
    high = clopper_pearson(misses, trials, error / 2.0)[1]
    mu = normal.inv_cdf(low) - normal.inv_cdf(high) if low > high else 0.0
    return Spent(gaussian=mu * mu / 2.0)


def _bound(
    likely: NDArray[np.float64], rare: NDArray[np.float64], delta: float, error: float
) -> float:
    """Return a lower bound of epsilon from the event that the value exceeds a threshold.

    The first half of the trials chooses the threshold. The second half is counted.
    """
    half = len(likely) // 2
    best, threshold = -math.inf, 0.0
    for at in np.quantile(np.concatenate([likely[:half], rare[:half]]), np.linspace(0, 1, 101)):
        hits, misses = int((likely[:half] > at).sum()), int((rare[:half] > at).sum())
        found = _epsilon(hits, misses, half, delta, error)
        if found > best:
            best, threshold = found, float(at)
    hits, misses = int((likely[half:] > threshold).sum()), int((rare[half:] > threshold).sum())
    return _epsilon(hits, misses, len(likely) - half, delta, error)


def _epsilon(hits: int, misses: int, trials: int, delta: float, error: float) -> float:
    low = clopper_pearson(hits, trials, error)[0] - delta
    high = clopper_pearson(misses, trials, error)[1]
    return max(0.0, math.log(low / high)) if low > 0.0 else 0.0


def _tail(hits: int, trials: int, share: float) -> float:
    """Return P(X >= hits) of a binomial X."""
    if hits <= 0:
        return 1.0
    k = np.arange(hits, trials + 1)
    logs = _log_choose(trials)[k] + k * math.log(share) + (trials - k) * math.log1p(-share)
    return float(min(1.0, np.exp(logs).sum()))


@cache
def _log_choose(trials: int) -> NDArray[np.float64]:
    factorials = np.zeros(trials + 1)
    np.cumsum(np.log(np.arange(1, trials + 1)), out=factorials[1:])
    return np.asarray(factorials[trials] - factorials - factorials[::-1])


def _solve(holds: Callable[[float], bool]) -> float:
    """Return the point between 0 and 1 from which a condition holds."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2.0
