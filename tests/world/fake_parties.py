"""The parties of a federation in memory: keys, plan, data, and a coordinator that can lie.

One client is under test; the puppets are further members, whose keys the fake holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from world.cells import guest, partition_of
from world.clock import FakeClock
from world.fake_link import FakeLink
from world.keys import encryption_key_of, keys_of

from fedrec.data import Catalogue
from fedrec.data.reading import DataSettings
from fedrec.follower.membership import Membership, tag_key_of
from fedrec.follower.patient_link import Backoff, StopSwitch
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.authority import Authority
from fedrec.identity.cells import Partition
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity, write_authority_key
from fedrec.ids import ClientId, RoundId
from fedrec.plan.agreement import plan_fingerprint, plan_to_json
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection import Member
from fedrec.settings.schema import ClientSettings, Settings
from fedrec.training.learner import Learner
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    FederationInfo,
)
from fedrec_client.app import ClientApp

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


class Parties:
    """Keys, plan, data and members of a small federation.

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
        # What most tests play: rounds in which all items are trained, because no client counted.
        self.protection = self.largest.over(self.layout.vector_spec)
        self.context, secret = keys_of(self.largest)
        self.authority = Authority.create()
        self.identity = Identity.load_or_create(self.state, "tested")
        self.puppets = [Identity.create(f"puppet {n}") for n in range(n_puppets)]
        self.stranger = Identity.create("stranger")
        self._secret = secret if self.protection.needs_reveal else b""
        self.run = "run-1"
        self.caller = ClientId("")
        self.published_round = RoundId(0)
        self.epoch = self.make_epoch()
        self._memberships: dict[Any, Membership] = {}
        self._halves: dict[tuple[bool, bytes], Member] = {}
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
            half=self.half_of(member, tag_key_of(secrets, "films", roster.epoch)),
            layout=self.layout,
        )

    def half_of(self, member: Identity, tag_key: bytes) -> Member | None:
        """Return what protects a member's vectors, of all who have the same keys."""
        if self.largest.steps.are_several:
            return None
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
        """Return whether a party has the key that opens sums."""
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
        }
        patience = {"sleep": self.clock.advance, "jitter": lambda: 1.0}
        patience |= {name: changes.pop(name) for name in ("sleep",) if name in changes}
        options["backoff"] = Backoff(changes.pop("stop", None) or StopSwitch(), **patience)
        settings = changes.pop("settings", None) or self.settings()
        return ClientApp(settings, **{**options, **changes})

    def event_names(self) -> list[str]:
        return [event.name for event in self.events]

    def audit(self) -> str:
        path = self.state / AUDIT_FILE
        return path.read_text() if path.exists() else ""
