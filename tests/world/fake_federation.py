"""The coordinator's side of a federation without a coordinator: a test says what is played."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from world.fake_parties import Parties

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.follower.round_terms import RoundVector
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.travelling_rows import ActiveRows
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    PublishedRound,
    Report,
    Reveal,
    RevealStatement,
    Train,
    UploadHeader,
    Wait,
)


@dataclass
class FakeRound:
    """One round as the fake coordinator keeps it."""

    number: RoundId
    kind: str
    base: RoundId
    contributions: dict[str, tuple[UploadHeader, bytes]] = field(default_factory=dict)
    published: PublishedRound | None = None

    @property
    def headers(self) -> tuple[UploadHeader, ...]:
        return tuple(header for header, _ in self.contributions.values())


class World(Parties):
    """The rounds of a small federation; see `Parties` for what it is made of."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.rounds: dict[int, FakeRound] = {}
        self.shared = {0: self.learner.server.initial_shared()}

    def open(self, number: int, kind: str = "train") -> FakeRound:
        found = FakeRound(number=RoundId(number), kind=kind, base=self.published_round)
        self.rounds[number] = found
        return found

    def vector(self, seed: int, round_: FakeRound | None = None) -> np.ndarray[Any, Any]:
        """Return made-up sums of two users, by default of a round that all items are trained in."""
        layout = self.layout if round_ is None else self.round_vector(round_).layout
        drawn = np.random.default_rng(seed).integers(0, 3, layout.length).astype(np.int64)
        kind = "train" if round_ is None else round_.kind
        if layout.mechanism is not None:
            drawn[layout.count_slice.start :] = 0
            drawn[layout.change_slice][~layout.noisy] = 0
            return drawn
        if kind == "count":
            drawn[layout.metrics_slice] = 0
            return drawn
        drawn[layout.count_slice] = 1 + drawn[layout.count_slice] // 2
        # As many users as there can be in a row, and no client whose training diverged.
        drawn[layout.metrics_slice] = [2 * (name != "abstained") for name in METRIC_NAMES]
        if kind == "evaluate":
            drawn[: layout.count_slice.stop] = 0
            drawn[layout.metrics_slice][: METRIC_NAMES.index("abstained")] = 0
        for part in layout.padding(len(self.rows(round_).index)) if round_ is not None else ():
            drawn[part] = 0
        return drawn

    def contribute(self, round_: FakeRound, *members: Identity) -> None:
        """Let puppets contribute."""
        for n, member in enumerate(members or self.puppets):
            self.put_vector(round_, member, self.vector(n, round_))

    def put_vector(self, round_: FakeRound, member: Identity, vector: Any) -> None:
        """Let a member contribute a vector as an honest one does."""
        self.put(round_, member, self.round_vector(round_, member).member.protect(vector))

    def rows(self, round_: FakeRound) -> ActiveRows:
        """Return the item rows that a round covers."""
        return self.learner.server.travelling.rows(round_.kind, self.shared[round_.base])

    def round_vector(self, round_: FakeRound, member: Identity | None = None) -> RoundVector:
        """Return what a member needs for a round's vectors."""
        known = self.membership(member or self.puppets[0])
        return known.vector_of(round_.kind, self.rows(round_).n_rows)

    def put(self, round_: FakeRound, member: Identity, payload: bytes, **changes: Any) -> None:
        header = self.sign(member, round_.number, payload, **changes)
        round_.contributions[member.client_id] = (header, payload)

    def sign(self, member: Identity, number: int, payload: bytes, **changes: Any) -> UploadHeader:
        fields: dict[str, Any] = {
            "protocol_version": PROTOCOL_VERSION,
            "federation": "films",
            "run": self.run,
            "round": RoundId(number),
            "kind": self.rounds[number].kind,
            "base_round": self.rounds[number].base,
            "base_state": self.base_state(self.rounds[number].base),
            "key_list": b"",
            "nonce": self.nonce_of(member),
            "epoch": self.epoch.roster.epoch,
            "client_id": member.client_id,
            "catalogue_fingerprint": self.catalogue.fingerprint(),
            "plan_fingerprint": plan_fingerprint(self.plan),
            "length": len(payload),
            "digest": blake3(payload).digest(),
            "n_rows": self.stated_rows(number).n_rows,
            "rows_digest": self.stated_rows(number).digest,
        }
        header = UploadHeader(**{**fields, **changes})
        return replace(header, signature=member.sign(header.statement()))

    def nonce_of(self, member: Identity) -> bytes:
        """Return what enters the names of a member's tags, where sums have any."""
        return b""

    def stated_rows(self, number: int) -> StatedRows:
        """Return what members say of the rows that a round covers."""
        return self.membership(self.puppets[0]).stated_rows(self.rows(self.rounds[number]))

    def stored(self, number: int) -> bytes:
        """Return a version's model as members keep and send it."""
        return self.as_sent(self.shared[number])

    def as_sent(self, shared: SharedState) -> bytes:
        """Return a model without the rows that every client draws from the run's seed."""
        return shared.to_bytes(self.shared[0])

    def base_state(self, version: int) -> bytes:
        """Return the digest of a version's model as members sign it."""
        member = self.membership(self.puppets[0])
        return member.base_state(RoundId(version), self.shared[version])

    def total(self, round_: FakeRound) -> bytes:
        added = self.round_vector(round_).accumulator()
        for _, payload in round_.contributions.values():
            added.add(payload)
        return added.finish()

    def applied(self, round_: FakeRound) -> np.ndarray[Any, Any]:
        """Return the sum of a round, and keep the model that follows from it."""
        member = self.opener
        vector = self.round_vector(round_, member)
        aggregate = vector.member.reveal(self.total(round_), len(round_.contributions))
        base = self.shared[round_.base]
        shared = self.learner.server.apply(round_.kind, base.number, base, aggregate)
        self.shared[round_.number] = shared
        return aggregate

    @property
    def opener(self) -> Identity:
        """A party that can read sums."""
        return self.puppets[0]

    def rows_after(self, number: int) -> StatedRows:
        """Return what members say of the rows that vectors cover after a round."""
        rows = self.learner.server.travelling.rows("train", self.shared[number])
        return self.membership(self.puppets[0]).stated_rows(rows)

    def report(self, number: int, member: Identity, metrics: bytes = b"") -> Report:
        """Return what a member says about its model after a round."""
        known = self.membership(member)
        return known.report_on(
            RoundId(number), self.shared[number], self.rows_after(number), metrics
        )

    def words(self, round_: FakeRound) -> tuple[RevealStatement | None, bytes]:
        """Return what is said about a round's sum, and in which bytes it is published."""
        self.applied(round_)
        return None, self.total(round_)

    def publish(self, round_: FakeRound) -> PublishedRound:
        """Publish a round."""
        statement, blob = self.words(round_)
        round_.published = PublishedRound(
            round=round_.number,
            epoch=self.epoch.roster.epoch,
            kind=round_.kind,
            contributions=round_.headers,
            statement=statement,
            blob=blob,
        )
        self.published_round = round_.number
        return round_.published

    def play(self, number: int, kind: str = "train") -> FakeRound:
        """Publish a round in which only puppets took part."""
        round_ = self.open(number, kind)
        self.contribute(round_)
        self.publish(round_)
        return round_

    def train(self, round_: FakeRound) -> Train:
        return Train(
            round=round_.number,
            kind=round_.kind,
            base_round=round_.base,
            seconds_left=60.0,
            epoch=self.epoch.roster.epoch,
        )

    def reveal(self, round_: FakeRound, **changes: Any) -> Reveal:
        total = self.total(round_)
        task = Reveal(
            round=round_.number,
            kind=round_.kind,
            base_round=round_.base,
            contributions=round_.headers,
            sum=Blob.of(total),
            epoch=self.epoch.roster.epoch,
        )
        return replace(task, **changes)

    def ask_to_train(self, number: int, kind: str = "train") -> FakeRound:
        """Put into the script: a round with the puppets, which the client is asked to join."""
        round_ = self.open(number, kind)
        self.contribute(round_)

        def begin() -> Train:
            if round_.base != self.published_round:
                # What puppets sent to begin with was for another version.
                round_.base = self.published_round
                self.contribute(round_)
            return self.train(round_)

        self.link.script.append(begin)
        return round_

    def whole_round(self, number: int, kind: str = "train") -> None:
        """Put into the script: open, let the client contribute, publish."""

        def begin() -> Train:
            round_ = self.rounds.get(number) or self.open(number, kind)
            self.contribute(round_)
            return self.train(round_)

        def end() -> Wait:
            self.publish(self.rounds[number])
            return Wait()

        self.link.script += [begin, end]
