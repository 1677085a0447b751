"""Rounds in which each puppet holds known items, and what an authority publishes of them.

An item is trained if four users hold it. Cells are three puppets each. Every puppet has two users
who hold every item but two: `RARE` has one holder, in the first cell, and `APART` has none in the
second one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authority.opening.spoiling import state_of
from client.round.test_bounds import PLAN, Vector, packed_without_checks
from client.support.authority_federation import AuthorityWorld
from client.support.fake_federation import FakeRound
from client.support.fake_parties import N_ITEMS
from safetensors.numpy import load

from fedrec.identity.identity import Identity
from fedrec.protection import VectorSpec
from fedrec.wire.messages import PublishedRound
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER

LEAST, RARE, APART, MADE_UP = 4, 5, 7, 10


class CountedWorld(AuthorityWorld):
    """A federation whose authority counts each cell's holders."""

    def __init__(
        self, folder: Path, *, liars: tuple[int, ...] = (), corrupt: int = 1, **more: Any
    ) -> None:
        federation = PLAN["federation"] | {"minimum_item_users": LEAST, "corrupt_cells": corrupt}
        super().__init__(folder, **{**PLAN, "federation": federation, "n_puppets": 9, **more})
        self.liars = liars

    def holders(self, number: int) -> Vector:
        """Return how many of a puppet's users hold each item, as it says."""
        found = np.full(N_ITEMS, 2)
        found[RARE] = int(number == 0)
        if 3 <= number < 6:
            found[APART] = 0
        if number in self.liars:
            found[RARE] = MADE_UP
        return found

    def vector(self, seed: int, round_: FakeRound | None = None) -> Vector:
        """Return what one puppet contributes: a change of 1 in each item that its users hold."""
        assert round_ is not None
        found, held = super().vector(seed, round_), np.minimum(2, self.holders(seed))
        layout, items = self.round_vector(round_).layout, self.rows(round_).index
        found[: layout.count_slice.stop] = 0
        if round_.kind == "count":
            held = self.holders(seed)
        found[layout.count_slice][: len(items)] = held[items]
        for tensor, values in layout.changes_of(found).items():
            assert tensor
            values[: len(items)] = (held[items] > 0)[:, None]
        return found

    def ask(self, round_: FakeRound, *numbers: int, guest: Identity | None = None) -> None:
        """Let puppets contribute, and the authority open their sum in a process of its own."""
        for number in numbers or range(9):
            self.put_vector(round_, self.puppets[number], self.vector(number, round_))
        if guest is not None:
            self.put_vector(round_, guest, self.vector(99, round_))
        self.run_revealer(lambda: self.reveal(round_))

    def follow(self, round_: FakeRound) -> Vector:
        """Publish what the authority opened last, and return it."""
        said, sealed = self.link.reveals[-1]
        assert said.round == round_.number
        known, base = self.membership(self.puppets[0]), self.shared[round_.base]
        vector = known.vector_of(round_.kind, self.rows(round_).n_rows)
        opened = vector.unpack(known.seal_of(said.round).unseal_aggregate(sealed), 1)
        after = self.learner.server.apply(round_.kind, base.number, base, opened)
        self.shared[round_.number] = after
        round_.published = PublishedRound(
            round=round_.number,
            epoch=self.epoch.roster.epoch,
            kind=round_.kind,
            contributions=round_.headers,
            statement=said,
            blob=sealed,
        )
        self.published_round = round_.number
        return opened

    def counts(self, number: int = 1, *numbers: int, guest: Identity | None = None) -> Vector:
        """Count, publish it, and return the published holders of each item."""
        round_ = self.open(number, "count")
        self.ask(round_, *numbers, guest=guest)
        opened = self.follow(round_)
        return opened[self.round_vector(round_).layout.count_slice]

    def trains(self, number: int, *numbers: int) -> set[int]:
        """Train, publish it, and return the items whose rows moved."""
        round_ = self.open(number)
        self.ask(round_, *numbers)
        base = self.shared[round_.base]
        self.follow(round_)
        moved = self.shared[round_.number].tensors["item_embedding"]
        rows = (moved != base.tensors["item_embedding"]).any(axis=1)
        return set(np.nonzero(rows)[0].tolist())

    def kept_counts(self) -> dict[str, Vector]:
        """Return what the authority keeps, by the number of the cell."""
        with OpenedSums(self.keys.revealer.folder / STATE_FOLDER, read_only=True) as store:
            found = state_of(self).cell_counts
            assert found is not None
            return {name.split("-")[0]: held for name, held in load(store.read(found)).items()}


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let puppets send what their own software would not: more holders than users."""
    monkeypatch.setattr(VectorSpec, "validated", lambda self, vector: vector)
    monkeypatch.setattr("fedrec.protection.packing.gmpy2.pack", packed_without_checks)
