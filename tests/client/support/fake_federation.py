"""A federation in memory: a coordinator that can lie, and members that contribute on cue.

One client is under test; the puppets are further members, whose keys the fake holds, so that it
can play honest rounds around the client and hostile ones against it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from blake3 import blake3
from cells import guest, partition_of
from fake_clock import FakeClock
from made_keys import encryption_key_of, keys_of

from fedrec.config.layout import Layout, protection_of
from fedrec.config.plan import plan_fingerprint, plan_to_json
from fedrec.config.rows import ActiveRows
from fedrec.config.schema import ClientSettings, DataSettings, Plan, Settings
from fedrec.data import Catalogue
from fedrec.errors import Unreachable
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.identity.application import SignedApplication
from fedrec.identity.authority import Authority
from fedrec.identity.authority_key import write_authority_key
from fedrec.identity.cells import Partition
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId, RoundId
from fedrec.model.state import SharedState
from fedrec.protection import Member
from fedrec.training.learner import Learner
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import (
    NOTHING,
    PROTOCOL_VERSION,
    Application,
    FederationInfo,
    Finished,
    MakeSnapshot,
    PublishedRound,
    Remembered,
    Report,
    Reveal,
    RevealStatement,
    Snapshot,
    Task,
    Train,
    UploadHeader,
    Wait,
)
from fedrec.wire.stated_rows import StatedRows
from fedrec_client.app import ClientApp
from fedrec_client.membership.membership import Membership, tag_key_of
from fedrec_client.membership.round_vector import RoundVector
from fedrec_client.state.audit import AUDIT_FILE

USERS = ("alice.private@example.org", "bob.private@example.org", "carol.private@example.org")
N_ITEMS = 12
SETTINGS_FILE = """
[federation]
name = "films"
minimum_item_users = 1
[algorithm]
dim = 4
[protection]
key_holder = "members"
[data]
path = "data.csv"
[client]
state = "state"
authority_key = "authority.pub.json"
device = "cpu"
"""


class Killed(BaseException):
    """What kill -9 looks like from inside a test."""


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


class World:
    """Keys, plan, data and rounds of a small federation.

    Args:
        folder: an empty folder for the client's files.
        protection: none or bfv.
        n_puppets: members beside the client under test.
        plan: further sections of the plan.
    """

    more_protection: ClassVar[dict[str, str]] = {"key_holder": "members"}
    """Further settings of the protection; its members hold the key, as in the papers."""
    tested_is_guest: ClassVar[bool] = True
    """Whether rounds of puppets alone are over whole cells, where sums need cells."""

    def __init__(
        self, folder: Path, *, protection: str = "bfv", n_puppets: int = 3, **plan: Any
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.plan = Plan(
            **{
                "federation": {"name": "films", "seed": 7, "minimum_item_users": 1},
                "algorithm": {"dim": 4, "local_epochs": 1, "batch_size": 8},
                "update": {"rank": 2},
                "protection": {"name": protection, **self.more_protection},
                **plan,
            }
        )
        self.catalogue = Catalogue.of(
            [f"item-{row}" for row in range(N_ITEMS)], [f"Film {row}" for row in range(N_ITEMS)]
        )
        self.catalogue.save(folder / "catalogue.csv")
        self.learner = Learner(self.plan, N_ITEMS, device="cpu")
        self.layout = Layout.of(self.plan, N_ITEMS)
        self.largest = protection_of(self.plan, N_ITEMS)
        # What most tests play: rounds in which all items are trained, because nobody counted.
        self.protection = self.largest.over(self.layout.vector_spec)
        self.context, secret = keys_of(self.largest)
        self.authority = Authority.create()
        self.identity = Identity.load_or_create(self.state, "tested")
        self.puppets = [Identity.create(f"puppet {n}") for n in range(n_puppets)]
        self.stranger = Identity.create("stranger")
        self._secret = secret if self.protection.needs_reveal else b""
        self.run = "run-1"
        self.caller = ClientId("")
        self.rounds: dict[int, FakeRound] = {}
        self.published_round = RoundId(0)
        self.epoch = self.make_epoch()
        self._memberships: dict[Any, Membership] = {}
        self._halves: dict[tuple[bool, bytes], Member] = {}
        self.shared = {0: self.learner.initial_shared()}
        self.clock = FakeClock()
        self.link = FakeLink(self)
        self.events: list[Any] = []
        write_authority_key(
            folder / "authority.pub.json",
            self.authority.public_key,
            self.authority.issuer.certificate,
        )
        self.write_data()

    def write_data(self, users: tuple[str, ...] = USERS) -> None:
        rows = [
            f"{user},item-{(7 * index + 3 * step) % N_ITEMS},{1000 + step}"
            for index, user in enumerate(users)
            for step in range(6)
        ]
        text = "\n".join(["user_id,item_id,timestamp", *rows]) + "\n"
        (self.folder / "data.csv").write_text(text)

    def make_epoch(self, **changes: Any) -> Any:
        terms: dict[str, Any] = {
            "federation": "films",
            "epoch": 1,
            "members": [member.public for member in (self.identity, *self.puppets)],
            "minimum_summands": 3,
            "protection": self.protection.name,
            "protection_fingerprint": self.largest.chosen.fingerprint(),
            "server_context": self.context,
            "protection_secret": self._secret,
        }
        terms |= changes
        if self.plan.has_cells and "partition" not in terms:
            terms["partition"] = self.partition(terms["members"])
        return self.authority.new_epoch(**terms)

    def partition(self, members: Iterable[PublicIdentity]) -> Partition:
        """Return the cells of an epoch, where its sums need them."""
        present = [member.client_id for member in members]
        if not self.tested_is_guest or self.identity.client_id not in present:
            return partition_of(present)
        present.remove(self.identity.client_id)
        return partition_of(present, guests=[guest(self.identity, "films")])

    def info(self, **changes: Any) -> FederationInfo:
        found = FederationInfo(
            protocol_version=PROTOCOL_VERSION,
            federation="films",
            run=self.run,
            plan_json=plan_to_json(self.plan),
            catalogue_fingerprint=self.catalogue.fingerprint(),
            n_items=N_ITEMS,
            epoch=self.epoch.roster.epoch,
            roster_json=self.epoch.roster.to_json(),
            server_context=self.context,
            wrapped_secrets=self.epoch.secrets_for(self.caller or self.identity.client_id),
            published_round=self.published_round,
        )
        return replace(found, **changes)

    def membership(self, identity: Identity | None = None) -> Membership:
        """Return what a member knows; the client under test finds it by enrolling."""
        member = identity or self.identity
        key = (member.client_id, id(self.epoch), self.run)
        if key not in self._memberships:
            self._memberships[key] = self._open(member)
        return self._memberships[key]

    def _open(self, member: Identity) -> Membership:
        roster, secrets = open_epoch(
            roster_json=self.epoch.roster.to_json(),
            server_context=self.context,
            wrapped=self.epoch.secrets_for(member.client_id),
            identity=member,
            pinned_authority_key=self.authority.public_key,
        )
        return Membership(
            identity=member,
            run=self.run,
            plan=self.plan,
            plan_fingerprint=plan_fingerprint(self.plan),
            catalogue=self.catalogue,
            catalogue_fingerprint=self.catalogue.fingerprint(),
            roster=roster,
            secrets=secrets,
            context=self.context,
            protection=self.largest,
            member=self.half_of(member, tag_key_of(secrets, "films", roster.epoch)),
            layout=self.layout,
        )

    def half_of(self, member: Identity, tag_key: bytes) -> Member:
        """Return what protects a member's vectors, of all who have the same keys."""
        opens = self.opens_sums(member)
        if (opens, tag_key) not in self._halves:
            self._halves[opens, tag_key] = (
                self.largest.member(self.context, self._secret or b"none", tag_key=tag_key)
                if opens
                else self.largest.encryptor(
                    self.context, encryption_key_of(self.largest, self._secret), tag_key=tag_key
                )
            )
        return self._halves[opens, tag_key]

    def opens_sums(self, member: Identity) -> bool:
        """Return whether somebody has the key that opens sums."""
        return True

    def half(self, identity: Identity | None = None) -> Member:
        """Return what protects and opens the vectors of rounds in which all items are trained."""
        return self.membership(identity).vector_of("train", N_ITEMS).member

    def settings(self, **client: Any) -> Settings:
        return Settings(
            **{name: getattr(self.plan, name) for name in Plan.model_fields},
            data=DataSettings(path=str(self.folder / "data.csv")),
            client=ClientSettings(
                state=str(self.state),
                authority_key=str(self.folder / "authority.pub.json"),
                device="cpu",
                **client,
            ),
        )

    def write_settings(self) -> None:
        """Write the settings as a file of a client on this folder."""
        (self.folder / "fedrec.toml").write_text(SETTINGS_FILE)

    def app(self, **changes: Any) -> ClientApp:
        options: dict[str, Any] = {
            "link": self.link,
            "on_event": self.events.append,
            "clock": self.clock,
            "sleep": self.clock.advance,
            "jitter": lambda: 1.0,
        }
        settings = changes.pop("settings", None) or self.settings()
        return ClientApp(settings, **{**options, **changes})

    def event_names(self) -> list[str]:
        return [event.name for event in self.events]

    def audit(self) -> str:
        path = self.state / AUDIT_FILE
        return path.read_text() if path.exists() else ""

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
        return self.learner.travelling.rows(round_.kind, self.shared[round_.base])

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
        """Return a model without the rows that everybody draws from the run's seed."""
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
        shared = self.learner.apply(round_.kind, base.number, base, aggregate)
        self.shared[round_.number] = shared
        return aggregate

    @property
    def opener(self) -> Identity:
        """Somebody who can read sums."""
        return self.puppets[0]

    def rows_after(self, number: int) -> StatedRows:
        """Return what members say of the rows that vectors cover after a round."""
        rows = self.learner.travelling.rows("train", self.shared[number])
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


class FakeLink:
    """The coordinator's side of every call; records whatever the client sends.

    Attributes:
        script: what `next_task` answers, one call after the other; then the run is finished.
        sent: every byte string that left the client.
        reveals, declined: what the key authority said of sums, by whether it opened them.
        uploads: (header, payload) of every submission, repeated ones included.
        gone: rounds whose sums are kept no more.
        offered, spare: snapshots that are here; the first is given that was not refused.
        refused: what the client said it refused, call by call.
        before: called with the name of each call; may raise.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.script: deque[Callable[[], Any]] = deque()
        self.sent: list[bytes] = []
        self.uploads: list[tuple[UploadHeader, bytes]] = []
        self.reveals: list[tuple[RevealStatement, bytes]] = []
        self.declined: list[RevealStatement] = []
        self.reports: list[Report] = []
        self.snapshots: list[tuple[Report, bytes]] = []
        self.gone: set[int] = set()
        self.offered: Snapshot | None = None
        self.spare: list[Snapshot] = []
        self.refused: list[tuple[bytes, ...]] = []
        self.before: Callable[[str], None] = lambda name: None
        self.after: Callable[[str], None] = lambda name: None
        self.epoch_of_tasks: Callable[[], int] = lambda: 0
        self.calls: list[str] = []
        self.payload_of: Callable[[str, bytes], bytes] = lambda contributor, payload: payload

    def _called(self, name: str, *sent: bytes | str) -> None:
        self.calls.append(name)
        self.sent += [part if isinstance(part, bytes) else part.encode() for part in sent]
        self.before(name)

    def federation(self, client_id: str) -> FederationInfo:
        self._called("federation", client_id)
        self.world.caller = ClientId(client_id)
        return self.world.info()

    def catalogue(self, client_id: str) -> bytes:
        self._called("catalogue", client_id)
        return (self.world.folder / "catalogue.csv").read_bytes()

    def next_task(
        self,
        client_id: str,
        run: str,
        version: int,
        *,
        wait_seconds: float,
        remembered: Remembered = NOTHING,
    ) -> Task:
        self._called("next_task", client_id, run, str(version))
        step = self.script.popleft() if self.script else lambda: Finished(reason="done")
        task = step()
        return Task(
            published_round=self.world.published_round, task=task, epoch=self.epoch_of_tasks()
        )

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        self._called("submit_update", header.statement(), header.signature, payload)
        self.uploads.append((header, payload))
        round_ = self.world.rounds[header.round]
        duplicate = header.client_id in round_.contributions
        round_.contributions[header.client_id] = (header, payload)
        self.after("submit_update")
        return duplicate

    def contribution(self, client_id: str, run: str, round_id: int, contributor: str) -> bytes:
        self._called("contribution", client_id, contributor)
        payload = self.world.rounds[round_id].contributions[contributor][1]
        return self.payload_of(contributor, payload)

    def round_sum(self, client_id: str, run: str, round_id: int) -> bytes:
        self._called("round_sum", client_id)
        return self.world.total(self.world.rounds[round_id])

    def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
        self._called("submit_reveal", statement.statement(), statement.signature, sealed)
        if statement.refused:
            assert not sealed
            self.declined.append(statement)
        else:
            self.reveals.append((statement, sealed))

    def published(self, client_id: str, run: str, after: int) -> PublishedRound | None:
        self._called("published", client_id)
        later = [n for n, r in self.world.rounds.items() if n > after and r.published is not None]
        return None if not later or min(later) in self.gone else self._published(min(later))

    def _published(self, number: int) -> PublishedRound | None:
        return self.world.rounds[number].published

    def snapshot(
        self, client_id: str, run: str, after: int, refused: tuple[bytes, ...] = ()
    ) -> Snapshot | None:
        self._called("snapshot", client_id)
        self.refused.append(refused)
        offers = (found for found in (self.offered, *self.spare) if found is not None)
        return next((s for s in offers if Blob.of(s.blob).digest not in refused), None)

    def submit_report(self, report: Report) -> None:
        self._called("submit_report", report.statement(), report.signature)
        self.reports.append(report)

    def submit_snapshot(self, report: Report, blob: bytes) -> None:
        self._called("submit_snapshot", report.statement(), report.signature, blob)
        self.snapshots.append((report, blob))

    def apply(self, application: bytes) -> Application:
        self._called("apply", application)
        client_id = SignedApplication.from_json(application).identity.client_id
        epoch = self.world.epoch
        return Application(
            epoch=epoch.roster.epoch,
            listed=epoch.roster.contains(client_id),
            certificate=epoch.certificates.get(client_id, b""),
        )

    def close(self) -> None:
        self.calls.append("close")


def down(world: World, name: str, times: int) -> Callable[[str], None]:
    """Return a `before` hook: the named call finds nobody for so many times."""
    left = [times]

    def hook(called: str) -> None:
        if called == name and left[0]:
            left[0] -= 1
            raise Unreachable("Nobody answers.")

    return hook


__all__ = [
    "N_ITEMS",
    "USERS",
    "FakeLink",
    "FakeRound",
    "Killed",
    "MakeSnapshot",
    "World",
    "down",
]
