"""A federation's folders, settings and keys, made in a moment: for tests and benchmarks.

What `fedrec provision` makes in kits is made here in one folder: a public catalogue, a private
folder for each client, the data owners' keys and the coordinator's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedrec.data import generate, partition_users
from fedrec.data.writing import write_interactions
from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.document import write_public
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.schema import Plan
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import Settings
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import FolderChanges, changing
from fedrec_authority.members.register import MemberRegister
from fedrec_lab.demo.parties import Parties
from fedrec_lab.demo.workspace import DEVICE, DemoData
from fedrec_lab.demo.workspace import Workspace as DemoWorkspace

T = TypeVar("T")


def change(folder: AuthorityFolder, what: Callable[[FolderChanges], T]) -> T:
    """Make one change, in a folder that may be new."""
    with changing(folder, new=True) as keys:
        return what(keys)


def keep(folder: AuthorityFolder, membership: MemberRegister) -> None:
    """Keep the record of members."""
    change(folder, lambda keys: keys.keep(membership))


def rotate(folder: AuthorityFolder, *, number: int = 0, resume: int = 0) -> KeyEpoch:
    """Make an epoch."""
    return change(folder, lambda keys: keys.rotate(number=number, resume=resume))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace(DemoWorkspace):
    """Where everything of a federation lies."""

    coordinator_state: Path
    epoch: Path
    data: DemoData

    @property
    def operator(self) -> Path:
        """What opens the operators' service."""
        return self.parties.operator


def made_data(**numbers: Any) -> DemoData:
    """Return what 12 users like of 30 items; `numbers` are those of `generate`."""
    usual = {"n_users": 12, "n_items": 30, "n_clusters": 2, "interactions_per_user": 5}
    made = generate(**{**usual, **numbers})
    return DemoData(name="test", interactions=made.interactions, catalogue=made.catalogue, note="")


def prepare(folder: Path, plan: Plan, data: DemoData, *, n_clients: int) -> Workspace:
    """Write catalogue, private data, keys and settings of a federation.

    Args:
        folder: an empty folder.
        plan: what all parties agree on.
        n_clients: how many clients share the users.
    """
    data.catalogue.save(folder / "catalogue.csv")
    clients = folder / "clients"
    identities = []
    for number, part in enumerate(partition_users(data.interactions, n_clients), start=1):
        own = clients / str(number)
        own.mkdir(parents=True, mode=0o700)
        write_interactions(own / "interactions.csv", part, private=True)
        identities.append(Identity.load_or_create(own / "state", f"client {number}"))
    members = [identity.public for identity in identities]
    certificates = _make_keys(folder / "keys", plan, len(data.catalogue), members)
    states = tuple(clients / str(number) / "state" for number in range(1, n_clients + 1))
    for state, member in zip(states, members, strict=True):
        write_public(state / CERTIFICATE_FILE, certificates[member.client_id])
    parties = Parties(
        authority=folder / "keys",
        coordinator=_write_settings(
            folder / "coordinator.toml",
            plan,
            data={"catalogue": "catalogue.csv"},
            coordinator={
                "port": 0,
                "state": "coordinator",
                "epoch": "keys/epoch.json",
                "certificate": "keys/coordinator.pem",
                "operators": "keys/operator.crt",
            },
        ),
        clients=tuple(
            _write_settings(
                state.parent / "client.toml",
                plan,
                data={"path": "interactions.csv", "catalogue": "../../catalogue.csv"},
                client={
                    "state": "state",
                    "authority_key": "../../keys/authority.pub.json",
                    "device": DEVICE,
                    "threads": 1,
                    "label": f"client {number}",
                },
            )
            for number, state in enumerate(states, start=1)
        ),
    )
    return Workspace(
        folder=folder,
        parties=parties,
        coordinator_state=folder / "coordinator",
        client_states=states,
        epoch=folder / "keys" / "epoch.json",
        plan=plan,
        data=data,
    )


def _make_keys(
    folder: Path, plan: Plan, n_items: int, members: list[PublicIdentity]
) -> Mapping[ClientId, bytes]:
    """Make all keys that the authority makes; return the clients' certificates."""
    keys = AuthorityFolder(folder)
    keep(keys, keys.begin(plan, n_items).of_exactly(members, int(time.time())))
    made = rotate(keys)
    change(keys, lambda keys: keys.serve_at([]))
    change(keys, lambda keys: keys.make_operator())
    return made.certificates


def _write_settings(path: Path, plan: Plan, **local: dict[str, object]) -> Path:
    settings = Settings.model_validate({**plan.model_dump(), **local})
    heading = f"Plan {plan_fingerprint(plan)[:16]}."
    path.write_text(settings_to_toml(settings, heading=heading), encoding="utf-8")
    return path
