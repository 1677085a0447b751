"""Recommendations made on the client itself: the user's vector never leaves the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedrec.config.plan import plan_from_json
from fedrec.config.schema import Settings
from fedrec.data import Catalogue
from fedrec.errors import CatalogueMismatch, DataError, StorageError
from fedrec.ids import ItemId, RoundId
from fedrec.training.state import PrivateState, SharedState
from fedrec_client.app import load_users, users_digest
from fedrec_client.durable import FileRef
from fedrec_client.private_store import PrivateStore
from fedrec_client.stored_state import StoredState

__all__ = ["Recommendation", "Recommendations", "recommend"]

Which = Literal["best", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended item."""

    rank: int
    item_id: ItemId
    title: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendations:
    """What a user is recommended, and by the model of which round."""

    version: RoundId
    items: tuple[Recommendation, ...]


def recommend(
    settings: Settings, user_id: str, n: int = 10, *, which: Which = "best"
) -> Recommendations:
    """Return the n best items for one of this client's users, best first.

    Works beside a running client and without the coordinator. Items that the user has already
    are left out.

    Args:
        settings: the client's settings.
        user_id: the user, as the data file names it.
        n: how many.
        which: the model that measured best on validation, or the latest one.

    Raises:
        StorageError: the state folder holds no model.
        DataError: the user is not in the data.
    """
    store = PrivateStore(Path(settings.client.state), read_only=True)
    pin = store.state.pin
    local = settings.data.catalogue
    catalogue = Catalogue.load(store.catalogue_path if local is None else local)
    if catalogue.fingerprint() != pin.catalogue_fingerprint:
        raise CatalogueMismatch(
            "The local catalogue is not the one that the model was trained with.",
            remedy="Restore the catalogue of the federation.",
        )
    users = load_users(settings, catalogue)
    if user_id not in users.user_ids:
        raise DataError(
            f"User {user_id!r} is not among the {len(users)} users of {settings.data.path}.",
            remedy="Give an id as the data file writes it.",
        )
    if users_digest(users) != pin.users:
        raise StorageError(
            "The data file has other users than those whose vectors are stored.",
            remedy="Use the data file that the client runs with.",
        )
    version, shared_ref, private_ref = _chosen(store.state, which)
    shared = SharedState.from_bytes(store.read(shared_ref))

    from fedrec.training.learner import Learner

    client = settings.client
    learner = Learner(
        plan_from_json(pin.plan_json.encode()),
        len(catalogue),
        device=client.device,
        memory_mib=client.memory_mib,
        threads=client.threads,
    )
    private = (
        learner.initial_private(users)
        if private_ref is None
        else PrivateState.from_bytes(store.read(private_ref))
    )
    rows, scores = learner.recommend(shared, users, private, users.user_ids.index(user_id), n)
    items = tuple(
        Recommendation(
            rank=rank, item_id=item_id, title=catalogue.title_of(item_id), score=float(score)
        )
        for rank, (item_id, score) in enumerate(
            zip(catalogue.ids_of(rows), scores, strict=True), start=1
        )
    )
    return Recommendations(version=version, items=items)


def _chosen(state: StoredState, which: Which) -> tuple[RoundId, FileRef, FileRef | None]:
    if which == "best" and state.best is not None:
        return state.best.round, state.best.shared, state.best.private
    if state.shared is None:
        raise StorageError(
            "No round has been published to this client yet, so there is no model.",
            remedy="Let `fedrec client run` take part in some rounds first.",
        )
    return state.version, state.shared, state.private
