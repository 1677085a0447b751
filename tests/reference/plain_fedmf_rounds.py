"""FedMF's rounds in float64: every user by the plain loop, sums, and the server's mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.plain_fedmf import Rule, train_user
from reference.plain_updates import largest_values, nearest_of_rank, subset_of


@dataclass(frozen=True, kw_only=True)
class Structure:
    """An update structure, in the words of the settings."""

    name: str = "dense"
    rank: int = 0
    n_kept: int = 0
    subset: str = "user"
    normaliser: str = "item"


@dataclass(frozen=True, kw_only=True)
class Round:
    """Sums of all users' A, who touched an item, who trained a value, and what follows."""

    change: np.ndarray
    counts: np.ndarray
    entries: np.ndarray
    table: np.ndarray
    vectors: np.ndarray


def compressed(structure: Structure, change: np.ndarray) -> np.ndarray:
    if structure.name == "svd":
        return nearest_of_rank(change, structure.rank)
    if structure.name == "topk":
        return largest_values(change, structure.n_kept)
    return change


def fedmf_round(table, vectors, keys, histories, rule: Rule, structure: Structure, basis, *,
                seed, round_id, per_positive):  # fmt: skip
    """Return a `Round` of users with identities `keys` and training items `histories`."""
    n_items, width = len(table), table.shape[1] if basis is None else len(basis)
    change, counts = np.zeros((n_items, width)), np.zeros(n_items, dtype=np.int64)
    entries = np.zeros((n_items, width), dtype=np.int64)
    after = vectors.copy()
    for index, key in enumerate(keys):
        trained, own = list(range(width)), basis
        if structure.name == "scolr":
            drawn_for = key if structure.subset == "user" else min(keys)
            trained = subset_of(seed, round_id, drawn_for, width)
            own = basis * np.isin(np.arange(width), trained)[:, None]
        positives = list(histories[index])
        after[index], rows = train_user(
            vectors[index], table, key, positives, positives, rule, own, seed=seed,
            round_id=round_id, per_positive=per_positive,
        )  # fmt: skip
        one = np.zeros_like(change)
        for item, row in rows.items():
            one[item] = row
        change += compressed(structure, one)
        touched = sorted(rows)
        counts[touched] += 1
        entries[np.ix_(touched, trained)] += 1
    divisor = entries if structure.normaliser == "entry" else counts[:, None]
    mean = compressed(structure, change / np.maximum(divisor, 1))
    moved = mean if basis is None else mean @ basis
    return Round(change=change, counts=counts, entries=entries, table=table + moved, vectors=after)
