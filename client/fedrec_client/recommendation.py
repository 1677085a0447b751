"""Recommendations made on the client itself: the user's vector never leaves the machine."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.config.schema import Settings
from fedrec.data.source import read_users
from fedrec.errors import DataError, StorageError
from fedrec.ids import ItemId, RoundId
from fedrec_client.app import users_digest
from fedrec_client.held_model import Which, read_held_model

__all__ = ["Recommendation", "Recommendations", "recommend"]


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
    held = read_held_model(settings, which)
    catalogue = held.catalogue
    users, _ = read_users(settings.data, catalogue, reader="a client")
    if user_id not in users.user_ids:
        raise DataError(
            f"User {user_id!r} is not among the {len(users)} users of {settings.data.path}.",
            remedy="Give an id as the data file writes it.",
        )
    if users_digest(users) != held.pin.users:
        raise StorageError(
            "The data file has other users than those whose vectors are stored.",
            remedy="Use the data file that the client runs with.",
        )

    from fedrec.training.learner import Learner

    client = settings.client
    learner = Learner(
        held.plan,
        len(catalogue),
        device=client.device,
        memory_mib=client.memory_mib,
        device_memory_mib=client.device_memory_mib,
        threads=client.threads,
    )
    private = learner.initial_private(users) if held.private is None else held.private
    rows, scores = learner.recommend(held.shared, users, private, users.user_ids.index(user_id), n)
    items = tuple(
        Recommendation(
            rank=rank, item_id=item_id, title=catalogue.title_of(item_id), score=float(score)
        )
        for rank, (item_id, score) in enumerate(
            zip(catalogue.ids_of(rows), scores, strict=True), start=1
        )
    )
    return Recommendations(version=held.version, items=items)
