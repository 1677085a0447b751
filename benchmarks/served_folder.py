"""A silo's folder as `fedrec client run` leaves it, of any size, without training."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedrec.data import Catalogue, UserSplit, read_interactions
from fedrec.data.reading import DataSettings
from fedrec.data.source import read_users
from fedrec.evaluation.metrics import Rates
from fedrec.follower.stored_state import RunPin, users_digest
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.schema import Plan
from fedrec_client.state.client_state import BestModel
from fedrec_client.state.private_store import PrivateStore

DIM = 64


class ServedFolder:
    """A settings file, a data file and a state folder with one version after the other.

    Args:
        folder: an empty one.
        data: interactions to serve in place of such that are drawn.
    """

    def __init__(
        self, folder: Path, *, n_items: int, n_users: int, per_user: int, data: Path | None = None
    ) -> None:
        self.settings_file = folder / "client.toml"
        self._draw = np.random.default_rng(7)
        self._state = folder / "state"
        self._plan = Plan.model_validate(
            {
                "federation": {"name": "films", "minimum_item_users": 1},
                "algorithm": {"name": "fedmf", "dim": DIM},
                "update": {"structure": "dense"},
            }
        )
        item_ids = [str(row) for row in range(n_items)]
        if data is not None:
            item_ids = list(Catalogue.from_interactions(read_interactions(data)[0]).item_ids)
        self.catalogue = Catalogue.of(item_ids, [f"Film {item} (1990)" for item in item_ids])
        self._state.mkdir(parents=True)
        self.catalogue.save(self._state / "catalogue.csv")
        rows = ["user_id,item_id,timestamp"]
        for user in range(n_users):
            chosen = self._draw.choice(n_items, per_user, replace=False)
            rows += [f"{user},{item},{time}" for time, item in enumerate(chosen.tolist())]
        content = "\n".join(rows) + "\n" if data is None else data.read_text(encoding="utf-8")
        (folder / "data.csv").write_text(content, encoding="utf-8")
        self.settings_file.write_text(
            '[federation]\nname = "films"\n[data]\npath = "data.csv"\n[client]\nstate = "state"\n',
            encoding="utf-8",
        )
        served = DataSettings(path=str(folder / "data.csv"))
        self.users: UserSplit = read_users(served, self.catalogue, reader="a benchmark")[0]
        self._pin = RunPin(
            federation="films",
            run="benchmark",
            plan_json=plan_to_json(self._plan).decode(),
            catalogue_fingerprint=self.catalogue.fingerprint(),
            users=users_digest(self.users),
        )
        self.version = 0

    def publish(self) -> int:
        """Commit another version, as the client does when a round is published."""
        self.version += 1
        n_items, n_users = len(self.catalogue), len(self.users)
        shared = SharedState(
            MappingProxyType({"item_embedding": self._draw.normal(size=(n_items, DIM))}),
            np.full(n_items, 20, dtype=np.int64),
        ).to_bytes()
        vectors = self._draw.normal(size=(n_users, DIM)).astype(np.float32)
        private = PrivateState(MappingProxyType({"user_embedding": vectors})).to_bytes()
        with PrivateStore(self._state) as store:
            store.bind(self._pin, 1)
            best = BestModel(
                round=RoundId(self.version),
                validation=Rates(users=n_users, hr=0.1, recall=0.1, ndcg=0.05, mrr=0.04),
                test=None,
                shared=store.keep_file("shared", shared),
                private=store.keep_file("private", private),
            )
            store.publish(RoundId(self.version), shared, metrics=b"", counted=False, best=best)
        return self.version
