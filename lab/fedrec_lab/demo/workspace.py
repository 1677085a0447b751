"""The folders, settings and keys of a demonstration federation.

Everything that a deployment spreads over several machines is made here on one: a public
catalogue, a private folder for each client, the data owners' keys and the coordinator's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrec.data import Catalogue, Interactions, fetch_ml_100k, generate
from fedrec.errors import DataError
from fedrec.identity.authority import EPOCH_FILE
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.roster import Roster
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec_lab.demo.parties import Parties

DEVICE = "cpu"
"""The device of all training.

On the CPU, results are reproducible to the bit. On CUDA, sums agree only within 1e-4.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoData:
    """The data of the demo.

    Attributes:
        note: one sentence for the reader, e.g. why it is synthetic.
    """

    name: str
    interactions: Interactions
    catalogue: Catalogue
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folders of a demo."""

    folder: Path
    parties: Parties
    client_states: tuple[Path, ...]
    plan: Plan

    @property
    def roster(self) -> Roster:
        """The members and their cells, as the key authority has them."""
        return KeyEpoch.load(self.parties.authority / EPOCH_FILE).roster


def load_data(*, synthetic: bool) -> DemoData:
    """Return MovieLens-100K, or planted taste clusters if it is unavailable."""
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
    """Make a kit for every party, as `fedrec provision` does for a trial.

    Args:
        folder: the run's folder, with the kits in `kits`.
        plan: the settings on which all parties agree.
        n_clients: number of clients among which users are divided.
    """
    # The demonstration plays all parties. Nothing else in this package knows the authority.
    from fedrec_authority.provisioning import provision

    names = [f"client-{number}" for number in range(1, n_clients + 1)]
    settings = Settings.model_validate(
        plan.model_dump()
        | {
            "parties": {"address": "127.0.0.1:7447", "clients": names},
            # One person plays all parties here, on public data.
            "client": {"device": DEVICE, "threads": 1, "accept_member_exposure": True},
        }
    )
    kits = folder / "kits"
    provision(settings, kits, data.catalogue, interactions=data.interactions)
    data.catalogue.save(folder / "catalogue.csv")
    parties = Parties.of_kits(kits)
    # Kits name a port that others call. Here any free one will do. Clients are told which it is.
    served = parties.coordinator.read_text("utf-8")
    parties.coordinator.write_text(served.replace("port = 7447", "port = 0"), "utf-8")
    return Workspace(
        folder=folder,
        parties=parties,
        client_states=tuple(settings.parent / "state" for settings in parties.clients),
        plan=plan,
    )
