"""A silo's settings, data and state folder, as `fedrec client run` leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from conformance.party import N_ITEMS, ROUND, Party, plan_of

from fedrec.algorithms import ALGORITHMS
from fedrec.data import Catalogue, Interactions, UserSplit, generate, leave_one_out
from fedrec.evaluation.metrics import Rates
from fedrec.follower.stored_state import RunPin, users_digest
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.agreement import plan_to_json
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec_client.state.client_state import BestModel
from fedrec_client.state.private_store import PrivateStore


class Silo:
    """A client's folder that one can publish into.

    Args:
        folder: an empty one.
        algorithm: by its name.
        rare: the rare items of each user that has some, as the user's oldest ones. No other
            user has these items.
    """

    def __init__(
        self, folder: Path, algorithm: str = "fedmf", rare: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.settings_file = folder / "client.toml"
        self.plan = plan_of(algorithm, ALGORITHMS[algorithm].about.supports.updates[0])
        made = generate(n_users=24, n_items=N_ITEMS, n_clusters=3, interactions_per_user=12, seed=3)
        self.catalogue = Catalogue.of(
            made.catalogue.item_ids, [f"Film {item}" for item in made.catalogue.item_ids]
        )
        items = {item for _, item in rare}
        rows = zip(made.interactions.user_ids, made.interactions.item_ids, strict=True)
        self.write_data([*rare, *(row for row in rows if row[1] not in items)])
        interactions = Interactions(
            user_ids=np.array([user for user, _ in self.rows], dtype=object),
            item_ids=np.array([item for _, item in self.rows], dtype=object),
            timestamps=np.arange(len(self.rows)),
        )
        self.users: UserSplit = leave_one_out(interactions, self.catalogue)
        self.settings_file.write_text(
            '[data]\npath = "data.csv"\n[client]\nstate = "state"\ndevice = "cpu"\n'
        )
        self.party = Party.of(self.plan, self.users)
        self.shared: dict[int, SharedState] = {}
        self.private: dict[int, PrivateState] = {}

    def write_data(self, rows: list[tuple[str, str]]) -> None:
        """Write who has what; of each user, in the order of time."""
        self.rows = rows
        lines = [f"{user},{item},{time}" for time, (user, item) in enumerate(rows)]
        text = "\n".join(["user_id,item_id,timestamp", *lines]) + "\n"
        (self.folder / "data.csv").write_text(text)

    @property
    def settings(self) -> Settings:
        return load_settings(self.settings_file, environ={})

    @property
    def user(self) -> str:
        return self.users.user_ids[0]

    @property
    def pin(self) -> RunPin:
        return RunPin(
            federation="films",
            run="run-1",
            plan_json=plan_to_json(self.plan).decode(),
            catalogue_fingerprint=self.catalogue.fingerprint(),
            users=users_digest(self.users),
        )

    def train(self, version: int) -> None:
        """Make a version by a training round over the one before."""
        before = self.shared.get(version - 1, self.party.shared)
        own = self.private.get(version - 1, self.party.private)
        made = self.party.train(private=own, shared=before)
        self.shared[version] = self.party.learner.server.apply("train", ROUND, before, made.vector)
        self.private[version] = made.private

    def publish(self, version: int) -> None:
        """Commit a version as the best and the latest one."""
        if version not in self.shared:
            self.train(version)
        self.state.mkdir(exist_ok=True)
        self.catalogue.save(self.state / "catalogue.csv")
        # Whole, without rows that follow from the seed.
        shared = self.shared[version].with_tensors().to_bytes()
        with PrivateStore(self.state) as store:
            store.bind(self.pin, 1)
            best = BestModel(
                round=RoundId(version),
                validation=Rates(users=3, hr=0.2, recall=0.2, ndcg=0.1, mrr=0.1),
                test=None,
                shared=store.keep_file("shared", shared),
                private=store.keep_file("private", self.private[version].to_bytes()),
            )
            store.publish(RoundId(version), shared, metrics=b"", counted=False, best=best)

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Return the content and the time of everything in the state folder."""
        return {
            str(path.relative_to(self.state)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(self.state.rglob("*"))
            if path.is_file()
        }
