"""The folders, settings and keys of a demonstration federation.

Everything that a deployment spreads over several machines is made here on one: a public
catalogue, a private folder for each client, the data owners' keys and the coordinator's folder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedrec.config.plan import plan_fingerprint
from fedrec.config.schema import Plan, Settings
from fedrec.config.writing import settings_to_toml
from fedrec.data import Catalogue, Interactions, fetch_ml_100k, generate, partition_users
from fedrec.data.writing import write_interactions
from fedrec.errors import DataError
from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.identity import Identity
from fedrec.identity.key_files import write_public
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId
from fedrec_lab.demo.parties import Parties

__all__ = ["DEVICE", "DemoData", "Workspace", "load_data", "prepare", "provisioned"]

DEVICE = "cpu"
"""Where everybody trains: there the bits are promised, on CUDA sums agree only within 1e-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoData:
    """What the demonstration runs on.

    Attributes:
        note: one sentence for the reader, e.g. why it is synthetic.
    """

    name: str
    interactions: Interactions
    catalogue: Catalogue
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where everything of a demonstration lies."""

    folder: Path
    parties: Parties
    coordinator_state: Path
    client_states: tuple[Path, ...]
    epoch: Path
    plan: Plan
    data: DemoData

    @property
    def coordinator_settings(self) -> Path:
        """The coordinator's settings file."""
        return self.parties.coordinator

    @property
    def client_settings(self) -> tuple[Path, ...]:
        """The clients' settings files."""
        return self.parties.clients

    @property
    def operator(self) -> Path:
        """What opens the operators' service."""
        return self.parties.operator


def load_data(*, synthetic: bool) -> DemoData:
    """Return MovieLens-100K, or planted taste clusters where it cannot be had."""
    reason = "as asked for"
    if not synthetic:
        try:
            fetched = fetch_ml_100k()
            interactions, _ = fetched.read()
            return DemoData(
                name="MovieLens-100K",
                interactions=interactions.deduplicated(),
                catalogue=fetched.catalogue,
                note=fetched.licence,
            )
        except DataError as error:
            reason = f"MovieLens-100K cannot be fetched: {error.message}"
    data = generate(
        n_users=600, n_items=900, n_clusters=6, interactions_per_user=60, noise=0.25, seed=1
    )
    return DemoData(
        name="synthetic taste clusters",
        interactions=data.interactions,
        catalogue=data.catalogue,
        note=f"Synthetic data, {reason}.",
    )


def provisioned(folder: Path, plan: Plan, data: DemoData, *, n_clients: int) -> Workspace:
    """Make everybody's kit, as `fedrec provision` does for a trial.

    Args:
        folder: the run's; the kits lie in `kits`.
        plan: what all parties agree on.
        n_clients: how many clients share the users.
    """
    # The demonstration plays all parties; nothing else in this package knows the authority.
    from fedrec_authority.provisioning import provision

    names = [f"client-{number}" for number in range(1, n_clients + 1)]
    settings = Settings.model_validate(
        plan.model_dump()
        | {
            "parties": {"address": "127.0.0.1:0", "clients": names},
            "client": {"device": DEVICE, "threads": 1},
        }
    )
    kits = folder / "kits"
    provision(settings, kits, data.catalogue, interactions=data.interactions)
    data.catalogue.save(folder / "catalogue.csv")
    parties = Parties.of_kits(kits)
    return Workspace(
        folder=folder,
        parties=parties,
        coordinator_state=parties.coordinator.parent / "state",
        client_states=tuple(settings.parent / "state" for settings in parties.clients),
        epoch=parties.coordinator.parent / "epoch.json",
        plan=plan,
        data=data,
    )


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
    # The demonstration plays all parties; nothing else in this package knows an authority's folder.
    from fedrec_authority.folder.authority_folder import AuthorityFolder

    keys = AuthorityFolder(folder)
    keys.keep(keys.begin(plan, n_items).of_exactly(members, int(time.time())))
    made = keys.rotate()
    keys.serve_at([])
    keys.make_operator()
    return made.certificates


def _write_settings(path: Path, plan: Plan, **local: dict[str, object]) -> Path:
    settings = Settings.model_validate({**plan.model_dump(), **local})
    heading = f"Made by `fedrec demo`; plan {plan_fingerprint(plan)[:16]}."
    path.write_text(settings_to_toml(settings, heading=heading), encoding="utf-8")
    return path
