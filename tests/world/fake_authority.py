"""A federation in memory whose sums the key authority opens; a coordinator that can lie to it.

Counting: Rounds in which each puppet holds known items, and what an authority publishes of them.

An item is trained if four users hold it. Cells are three puppets each. Every puppet has two users
who hold every item but two: `RARE` has one holder, in the first cell, and `APART` has none in the
second one.

Spoiling: Puppets that add what no user can, and what the authority publishes then.

Six puppets are two cells of three, nine are three; the spoiler is the last of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load
from world.fake_federation import FakeRound, World
from world.fake_link import KeyWatch, Killed
from world.fake_parties import N_ITEMS
from world.federation import change, keep
from world.keys import encryption_key_of

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.follower.patient_link import Stopped
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.authority import AUTHORITY_FILE
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify, write_authority_key
from fedrec.ids import RoundId
from fedrec.plan.layout import METRICS_SLICE
from fedrec.protection import VectorSpec
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import PublishedRound, RevealStatement, manifest_digest
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER, Revealer

Vector = NDArray[np.int64]

ROW, WIDTH, BITS = 5, 4, 8
PLAN: dict[str, Any] = {
    "federation": {"name": "films", "seed": 7, "minimum_item_users": 1},
    "algorithm": {"dim": WIDTH, "local_epochs": 1, "batch_size": 8},
    "update": {"structure": "dense", "clip": 1.0, "fraction_bits": BITS},
}
"""An honest user moves a value of a row by 1 at most: 256 steps."""


def packed_without_checks(values: Iterable[int], width: int) -> int:
    """Write negative numbers where none are, as changed software does."""
    return sum(value << (place * width) for place, value in enumerate(values))


class AuthorityWorld(World):
    """The authority's revealer is under test, or the client that believes it."""

    more_protection: ClassVar[dict[str, str]] = {"key_holder": "authority"}

    @property
    def keys(self) -> AuthorityFolder:
        """The authority's folder."""
        return AuthorityFolder(self.folder / "keys")

    @property
    def revealer(self) -> Identity:
        """Who opens sums."""
        return change(self.keys, lambda keys: keys.revealer.load_or_create())

    @property
    def secret(self) -> bytes:
        """The secret key, which members do not have."""
        return self._secret

    def make_epoch(self, **changes: Any) -> Any:
        keys = self.keys
        if not (keys.private / AUTHORITY_FILE).exists():
            self.authority.save(keys.private)
            write_authority_key(
                keys.public_key_path, self.authority.public_key, self.authority.issuer.certificate
            )
            members = [member.public for member in (self.identity, *self.puppets)]
            keep(keys, keys.begin(self.plan, N_ITEMS).of_exactly(members, 1))
        epoch = changes.get("epoch", 1)
        change(keys, lambda keys: keys.revealer.keep(epoch, self._secret))
        alone = {
            "revealer": self.revealer.public,
            "protection_secret": encryption_key_of(self.largest, self._secret),
        }
        return super().make_epoch(**{**alone, **changes})

    def opens_sums(self, member: Identity) -> bool:
        return member.client_id == self.revealer.client_id

    def put_vector(self, round_: FakeRound, member: Identity, vector: Any) -> None:
        """Let a member contribute a vector as an honest one does."""
        known = self.membership(member)
        name = known.tag_name(round_.number, member.client_id, self.nonce_of(member))
        self.put(round_, member, self.round_vector(round_, member).member.protect(vector, name))

    def nonce_of(self, member: Identity) -> bytes:
        return member.public.signing_key[:16] if self.largest.chosen.n_tags else b""

    @property
    def opener(self) -> Identity:
        return self.revealer

    def words(self, round_: FakeRound) -> tuple[RevealStatement | None, bytes]:
        return self.state_of(round_)

    def state_of(self, round_: FakeRound) -> tuple[RevealStatement, bytes]:
        """Return what the authority says about a round, and the sealed sum."""
        known, vector = self.membership(self.revealer), self.round_vector(round_, self.revealer)
        aggregate = self.applied(round_)
        seal, rows = known.seal_of(round_.number), self.rows_after(round_.number)
        sealed = seal.seal_aggregate(vector.pack(aggregate))
        shared = self.shared[round_.number]
        statement = RevealStatement(
            federation="films",
            run=self.run,
            round=round_.number,
            epoch=known.epoch,
            client_id=known.client_id,
            manifest_digest=manifest_digest(known.run, round_.number, round_.headers),
            state_tag=seal.state_tag(shared.canonical_bytes()),
            published_digest=Blob.of(sealed).digest,
            metrics=aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
            kind=round_.kind,
            trained=shared.trained,
            # Something was refused in between.
            sequence=2 * round_.number,
        )
        return known.sign_statement(statement), sealed

    def run_revealer(self, *tasks: Callable[[], Any], new_run: bool = False) -> Revealer:
        """Give the revealer these tasks, and end it when it asks for another one."""
        self.link.script.extend(tasks)
        hook = self.link.before

        def end(name: str) -> None:
            hook(name)
            waits = [event.detail for event in self.events if event.name == "revealer waits"]
            assert self.link.calls.count("federation") < 50, waits
            if name == "next_task" and not self.link.script:
                raise Stopped

        self.link.before = end
        revealer = Revealer(
            self.keys,
            self.link,
            self.events.append,
            new_run=new_run,
            clock=self.clock,
            sleep=self.clock.advance,
            jitter=lambda: 1.0,
        )
        try:
            revealer.start()
            revealer.wait(120.0)
        finally:
            self.link.before = hook
            revealer.close()
        return revealer

    def refusals(self) -> str:
        """Return the revealer's audit log."""
        path = self.keys.revealer.folder / STATE_FOLDER / AUDIT_FILE
        return path.read_text() if path.exists() else ""

    def honest_round(self, number: int = 1, kind: str = "train") -> FakeRound:
        """Open a round to which all puppets contribute."""
        round_ = self.open(RoundId(number), kind)
        self.contribute(round_)
        return round_


def refused(world: AuthorityWorld, key: KeyWatch, *words: str) -> None:
    """Check that nothing was opened, and that the audit log says why."""
    assert world.link.reveals == []
    assert key.opened == []
    assert world.link.declined, "the coordinator would wait for ever"
    assert "reveal refused" in world.event_names()
    assert '"event":"reveal_refused"' in world.refusals()
    for word in words:
        assert word in world.refusals()


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
        statement, sealed = self.link.reveals[-1]
        assert statement.round == round_.number
        known, base = self.membership(self.puppets[0]), self.shared[round_.base]
        vector = known.vector_of(round_.kind, self.rows(round_).n_rows)
        opened = vector.unpack(known.seal_of(statement.round).unseal_aggregate(sealed), 1)
        after = self.learner.server.apply(round_.kind, base.number, base, opened)
        self.shared[round_.number] = after
        round_.published = PublishedRound(
            round=round_.number,
            epoch=self.epoch.roster.epoch,
            kind=round_.kind,
            contributions=round_.headers,
            statement=statement,
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


ROW, WIDTH, BITS = 5, 4, 8


def inflated_row(layout: Any, vector: Vector, spoils: bool) -> None:
    """One user moves a row, which no other client touches, 11,775 times as far as any can."""
    vector[layout.count_slice][ROW] = int(spoils)
    vector[ROW * WIDTH : (ROW + 1) * WIDTH] = 0
    vector[ROW * WIDTH] = (11_775 << BITS) * spoils


def denominator_negative(layout: Any, vector: Vector, spoils: bool) -> None:
    """Others moved a row by 1 each; two users are taken off, so that it is divided by fewer."""
    vector[layout.count_slice][ROW] = -2 if spoils else 1
    vector[ROW * WIDTH] = 0 if spoils else 1 << BITS


def users_over_cap(layout: Any, vector: Vector, spoils: bool) -> None:
    """As many users as a federation may have, beside those of the others."""
    if spoils:
        vector[layout.metrics_slice][METRIC_NAMES.index("participants")] = 16_384


Attack = Callable[[Any, Vector, bool], None]
ATTACKS: tuple[Attack, ...] = (inflated_row, denominator_negative, users_over_cap)


def spoilt(
    world: World,
    attack: Attack,
    monkeypatch: pytest.MonkeyPatch,
    *spoilers: int,
    only: int | None = None,
) -> None:
    """Let some puppets contribute what their own software would not; the others are honest.

    Args:
        only: the one round in which they do; else all that train.
    """
    honest = world.vector

    def vector(seed: int, round_: FakeRound | None = None) -> Vector:
        found = honest(seed, round_)
        if round_ and round_.kind == "train" and only in (None, round_.number):
            attack(world.round_vector(round_).layout, found, seed in spoilers)
        return found

    monkeypatch.setattr(world, "vector", vector)
    # Changed software does not check what it sends.
    monkeypatch.setattr(VectorSpec, "validated", lambda self, vector: vector)
    monkeypatch.setattr("fedrec.protection.packing.gmpy2.pack", packed_without_checks)


@contextmanager
def killed_when_opened(n_opened: int) -> Iterator[None]:
    """End the authority at the first use of its key after a given number of sums."""
    reveal = KeyWatch.reveal

    def killed(watch: KeyWatch, *what: Any) -> Any:
        if len(watch.opened) == n_opened:
            raise Killed
        return reveal(watch, *what)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(KeyWatch, "reveal", killed)
        yield


def state_of(world: AuthorityWorld) -> Any:
    return OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True).state


def added(world: AuthorityWorld, round_: FakeRound, *numbers: int) -> bytes:
    """Return the sum of some puppets' contributions."""
    total = world.round_vector(round_).accumulator()
    for number in numbers:
        total.add(round_.contributions[world.puppets[number].client_id][1])
    return total.finish()


def opened_by(world: AuthorityWorld, statement: RevealStatement, sealed: bytes) -> Vector:
    known = world.membership(world.puppets[0])
    vector = known.vector_of("train", len(known.catalogue))
    return vector.unpack(known.seal_of(statement.round).unseal_aggregate(sealed), 1)


def check_published_over(
    world: AuthorityWorld, round_: FakeRound, paused: tuple[int, ...], *numbers: int
) -> None:
    """Check that the round's sum is that of these puppets, and who is named."""
    ((statement, sealed),) = world.link.reveals
    verify(world.revealer.public.signing_key, statement.statement(), statement.signature)
    kept = tuple(round_.contributions[world.puppets[n].client_id][0] for n in numbers)
    assert statement.paused == paused
    assert statement.manifest_digest == manifest_digest(world.run, round_.number, kept)
    wanted = sum(world.vector(n, round_) for n in numbers)
    assert np.array_equal(opened_by(world, statement, sealed), wanted)


def audited(world: AuthorityWorld) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in world.refusals().splitlines()]
    return [(line["event"], line["code"]) for line in lines]
