"""The audit of sketches: which rows of pair counts follow from sums along few directions.

Released are Y_1 = G Omega and Y_t = G Q with Q = orth(Y_{t-1}), where G has the pair counts and c
is its diagonal. Omega is public and each Q follows from the released sums, so the measurements of
each row g of G are known: y = g [Omega, Q, ...]. There are far fewer of them than entries. But a
row with s nonzero entries follows from about s log n of them. So the audit does what any reader of
the sums could do, orthogonal matching pursuit. It takes the entry that explains most of the
residual of y, fits all entries so found by least squares, and repeats. A row is decoded if whole
numbers explain y and no residual is left. G is symmetric: an entry of a decoded row is known in
another row, which then has fewer unknown entries. So all rows are tried again until no more are
decoded.

With as many sums as items, no such method is needed: all rows follow by linear algebra.

The result is a lower bound. The method knows nothing about the users. It gives up after a quarter
as many entries as measurements, and after 64. It tries only rows of the items with the fewest
holders, up to 128 of them. Other rows have more nonzero counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.sketched_weights import drawn_directions, orthonormal
from fedrec.data.splits import UserSplit
from fedrec.plan.schema import Plan
from fedrec_lab.audit.sums import AuditCount, AuditReport, check_exact, pair_counts_of

_MOST_ROWS = 128
_MOST_ENTRIES = 64
_SMALL = 5
"""Pairs with fewer holders count as rare: such a count is small in any federation."""
_ROWS_AT_ONCE = 64
_NOTHING_LEFT = 1e-6
"""Largest relative residual of a decoded row. Least squares leave about 1e-12."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Decoded:
    """The decoded rows of G, by position."""

    rows: NDArray[np.int64]
    counts: Matrix


def measurements(gram: Matrix, active: NDArray[np.int64], seed: int, dim: int, sums: int) -> Matrix:
    """Return the directions that measure each row of G, side by side, (n, sums x dim)."""
    found = [drawn_directions(seed, active, dim)]
    for _ in range(sums - 1):
        found.append(orthonormal(gram @ found[-1]))
    return np.concatenate(found, axis=1)


def decoded_rows(measured: Matrix, directions: Matrix, holders: Matrix) -> _Decoded:
    """Return the rows of G that follow from the measurements. See the module's docstring.

    Args:
        measured: Y, all sums side by side, (n, n_measurements).
        directions: the directions of the measurements, in the same form.
        holders: the diagonal of G, which is also published.
    """
    n_items = len(holders)
    if directions.shape[1] >= n_items and np.linalg.matrix_rank(directions) == n_items:
        whole, *_ = np.linalg.lstsq(directions.T, measured.T, rcond=None)
        return _Decoded(rows=np.arange(n_items), counts=np.rint(whole.T).astype(np.float64))
    open_rows = np.argsort(holders, kind="stable")[:_MOST_ROWS]
    rows: list[int] = []
    counts = np.zeros((0, n_items))
    while len(open_rows):
        found: dict[int, Matrix] = {}
        for begin in range(0, len(open_rows), _ROWS_AT_ONCE):
            part = open_rows[begin : begin + _ROWS_AT_ONCE]
            known = np.zeros((len(part), n_items))
            known[:, rows] = counts[:, part].T
            known[np.arange(len(part)), part] = holders[part]
            hidden = np.ones_like(known, dtype=np.bool_)
            hidden[:, rows] = False
            hidden[np.arange(len(part)), part] = False
            left = measured[part] - known @ directions
            solved = _pursued(left, directions, hidden)
            found |= {
                int(row): known[place] + values
                for place, (row, values) in enumerate(zip(part, solved, strict=True))
                if values is not None
            }
        if not found:
            break
        rows += list(found)
        counts = np.concatenate([counts, np.array(list(found.values()))])
        open_rows = open_rows[~np.isin(open_rows, rows)]
    return _Decoded(rows=np.array(rows, dtype=np.int64), counts=counts)


def _pursued(
    measured: Matrix, directions: Matrix, hidden: NDArray[np.bool_]
) -> list[Matrix | None]:
    """Return the unknown counts of some rows, or None for rows that do not follow."""
    n_rows, n_measurements = measured.shape
    lengths = np.maximum(np.linalg.norm(directions, axis=1), np.finfo(float).tiny)
    unit = directions / lengths[:, None]
    size = np.linalg.norm(measured, axis=1)
    solved: list[Matrix | None] = [None] * n_rows
    left, free = measured.copy(), hidden.copy()
    support: list[list[int]] = [[] for _ in range(n_rows)]
    most = min(n_measurements // 4, _MOST_ENTRIES)
    basis = np.zeros((n_rows, most, n_measurements))
    going = np.arange(n_rows)
    for step in range(most + 1):
        small = np.linalg.norm(left[going], axis=1) <= _NOTHING_LEFT * np.maximum(size[going], 1.0)
        for row in going[small]:
            solved[row] = _whole(measured[row], directions, support[row])
        going = going[~small]
        if not len(going) or step == most:
            break
        fit = np.where(free[going], np.abs(left[going] @ unit.T), -1.0)
        chosen = fit.argmax(1)
        added = unit[chosen]
        for _ in range(2):
            along = np.einsum("rsm,rm->rs", basis[going, :step], added)
            added = added - np.einsum("rs,rsm->rm", along, basis[going, :step])
        added /= np.maximum(np.linalg.norm(added, axis=1, keepdims=True), np.finfo(float).tiny)
        basis[going, step] = added
        left[going] -= (left[going] * added).sum(1, keepdims=True) * added
        free[going, chosen] = False
        for row, item in zip(going.tolist(), chosen.tolist(), strict=True):
            support[row].append(item)
    return solved


def _whole(measured: Matrix, directions: Matrix, support: list[int]) -> Matrix | None:
    """Return the counts that explain a row, if they are whole numbers of users."""
    counts = np.zeros(len(directions))
    if support:
        values, *_ = np.linalg.lstsq(directions[support].T, measured, rcond=None)
        counts[support] = np.rint(values)
        if np.abs(values - counts[support]).max() > 0.1 or counts.min() < 0:
            return None
    return counts


def audit_sketches(plan: Plan, users: UserSplit, n_items: int) -> AuditReport:
    """Return the pair counts that the sums reveal, and the users that they determine.

    Raises:
        SettingsError: the sums have noise.
    """
    check_exact(plan)
    # The algorithm defines the number of directions and of sums.
    settings = plan.algorithm.model_dump()
    most, sums = int(settings["dim"]), int(settings["sums"])
    least = plan.federation.minimum_item_users
    active, whole = pair_counts_of(users, n_items, least)
    gram = whole.astype(np.float64)
    holders = np.diag(gram).copy()
    findings, at_dim = [], _Decoded(rows=np.zeros(0, dtype=np.int64), counts=gram[:0])
    for dim in dict.fromkeys((most, most // 2, most // 4)):
        if not dim:
            continue
        directions = measurements(gram, active, plan.federation.seed, dim, sums)
        found = decoded_rows(gram @ directions, directions, holders)
        right = (found.counts == gram[found.rows]).all(1)
        found = _Decoded(rows=found.rows[right], counts=found.counts[right])
        at_dim = found if dim == most else at_dim
        findings += _findings(found, gram, least, dim)
    determined = _sole_holders(users, active[at_dim.rows[holders[at_dim.rows] == 1]])
    tried = min(_MOST_ROWS, len(active))
    return AuditReport(
        released=f"{sums} x {most} sums over each row of pair counts of the "
        f"{len(active)} items that {least} or more hold",
        inference="rows of pair counts that follow from their sums, by orthogonal matching "
        f"pursuit, among the {tried} items with the fewest holders. A user is determined "
        "if it alone holds an item whose row follows. As many sums as items give all rows",
        n_users=len(users),
        n_items=n_items,
        n_active=len(active),
        minimum_item_users=least,
        determined=tuple(users.user_ids[index] for index in determined),
        findings=tuple(findings),
        advice="Raise federation.minimum_item_users: rows of items with many holders have many "
        "counts and do not follow from few sums. Or lower algorithm.dim.",
    )


def _findings(found: _Decoded, gram: Matrix, least: int, dim: int) -> list[AuditCount]:
    """Describe the decoded rows for one number of directions."""
    upper = np.triu(np.ones(gram.shape, dtype=np.bool_), 1)
    few = max(least, _SMALL)
    small = upper & (gram > 0) & (gram < few)
    sent = np.zeros_like(upper)
    sent[found.rows] = True
    sent |= sent.T
    n_small, n_sent = int(small.sum()), int((small & sent).sum())
    alone = int((upper & (gram == 1) & sent).sum())
    share = 100.0 * n_sent / n_small if n_small else 0.0
    return [
        AuditCount(
            key=f"rows_decoded_at_{dim}",
            count=len(found.rows),
            sentence=f"rows are decoded exactly with algorithm.dim = {dim}",
        ),
        AuditCount(
            key=f"small_pairs_decoded_at_{dim}",
            count=n_sent,
            sentence=f"pairs that fewer than {few} users hold together are known by that, "
            f"{share:.1f} % of all {n_small}",
        ),
        AuditCount(
            key=f"pairs_of_one_user_decoded_at_{dim}",
            count=alone,
            sentence="pairs among the decoded ones are held together by exactly one user",
        ),
    ]


def _sole_holders(users: UserSplit, items: NDArray[np.int64]) -> list[int]:
    """Return the users that hold one of these items."""
    owner = users.train_owner
    found: list[int] = np.unique(owner[np.isin(users.train_items, items)]).tolist()
    return found
