"""The data of this client's users at their last count, so that exact sums over them are repeated.

Two sums over the same clients differ by the changes in between. If one user's data changed, the
difference is that user's history. So this client keeps sending the holder counts of the last count,
and all else that follows from the data alone, until enough users differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedrec.data.splits import UserSplit
from fedrec.errors import StorageError
from fedrec.follower.database import DAMAGED
from fedrec.ids import ItemId, UserId

_DIGEST_BYTES = 16
_SPLIT = tuple(field.name for field in fields(UserSplit) if field.name != "user_ids")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedData:
    """The users' data at a count.

    Attributes:
        run: the run of the count. Its counts stay the same to its end.
        user_ids: the counted users.
        digests: the digest of each user's training items, uint8 (n_users, 16).
        item_keys: the digest of each item's id, int64 (n_items,), because another run may have
            other rows.
        counts: number of users that hold each item, int64 (n_items,).
        floor: the value of `client.minimum_own_item_users` at the count, or 1 without a floor.
        users: the data, if more than counts follows from it, or None.
    """

    run: str
    user_ids: tuple[UserId, ...]
    digests: NDArray[np.uint8]
    item_keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    users: UserSplit | None
    floor: int = 1

    @classmethod
    def of(
        cls,
        users: UserSplit,
        item_ids: Sequence[ItemId],
        *,
        run: str,
        whole: bool,
        floor: int = 1,
    ) -> CountedData:
        """Return the count of these users.

        Args:
            item_ids: the catalogue's items, in its order.
            run: the run that counts them.
            whole: whether to keep the data itself.
            floor: `client.minimum_own_item_users`.
        """
        raw = b"".join([sha256(item.encode()).digest()[:8] for item in item_ids])
        keys = np.frombuffer(raw, dtype=">i8").astype(np.int64)
        held = keys[users.train_items]
        found = b"".join(
            [
                sha256(np.sort(held[begin:end]).tobytes()).digest()[:_DIGEST_BYTES]
                for begin, end in zip(users.train_indptr, users.train_indptr[1:], strict=False)
            ]
        )
        return cls(
            run=run,
            user_ids=users.user_ids,
            digests=np.frombuffer(found, dtype=np.uint8).reshape(-1, _DIGEST_BYTES),
            item_keys=keys,
            counts=users.item_counts(len(keys)),
            users=users if whole else None,
            floor=floor,
        )

    def differing(self, other: CountedData) -> int:
        """Return how many users joined, left, or have other training items."""
        mine, others = self._by_user(), other._by_user()
        return sum(mine.get(user) != others.get(user) for user in mine.keys() | others.keys())

    def _by_user(self) -> dict[UserId, bytes]:
        return {user: row.tobytes() for user, row in zip(self.user_ids, self.digests, strict=True)}

    def is_kept_over(self, today: CountedData, least: int) -> bool:
        """Return whether this count is still sent instead of the users' current data.

        Args:
            least: the number of users that must differ, if any do.
        """
        if self.run == today.run:
            return True
        return bool(self.differing(today)) and (
            self.differing(today) < least or len(today.user_ids) < least
        )

    def over(self, today: CountedData) -> CountedData:
        """Return the same for the current run and catalogue, without items that it lacks.

        If only counts are stored but the data is needed now, it is taken from users that have not
        changed, so that it matches the counts.
        """
        row_of = {key: row for row, key in enumerate(today.item_keys.tolist())}
        rows = np.array([row_of.get(key, -1) for key in self.item_keys.tolist()], dtype=np.int64)
        counts = np.zeros(len(today.item_keys), dtype=np.int64)
        counts[rows[rows >= 0]] = self.counts[rows >= 0]
        users = None if self.users is None else self.users.renumbered(rows)
        if users is None and today.users is not None:
            before = self._by_user()
            same = [before.get(user) == found for user, found in today._by_user().items()]
            users = today.users.select(np.nonzero(np.array(same))[0])
        return replace(
            self,
            run=today.run,
            item_keys=today.item_keys,
            counts=counts,
            users=users,
            floor=today.floor,
        )

    def with_floor_of(self, before: CountedData) -> CountedData:
        """Return the same with the floor at the beginning of its run, if that was higher.

        Rows that one sum of a run lacks and the next one has would reveal data of few users.
        """
        known = before.floor if before.run == self.run else 1
        return replace(self, floor=max(known, self.floor))

    def to_bytes(self) -> bytes:
        """Return it in safetensors format."""
        arrays: dict[str, NDArray[Any]] = {
            "run": _packed(self.run),
            "user_ids": _packed(self.user_ids),
            "digests": self.digests,
            "item_keys": self.item_keys,
            "counts": self.counts,
            "floor": np.array(self.floor),
        }
        if self.users is not None:
            arrays |= {name: np.asarray(getattr(self.users, name)) for name in _SPLIT}
            arrays["users"] = _packed(self.users.user_ids)
        return bytes(save(arrays))

    @classmethod
    def from_bytes(cls, raw: bytes) -> CountedData:
        """Read what `to_bytes` wrote.

        Raises:
            StorageError: the bytes are something else.
        """
        try:
            found = load(raw)
            run, *ids = (
                json.loads(found.pop(name).tobytes())
                for name in ("run", "user_ids", "users")
                if name in found
            )
            user_ids, *whose = (tuple(map(UserId, one)) for one in ids)
            split = {name: found.pop(name) for name in _SPLIT if whose}
            users = UserSplit(user_ids=whose[0], **split) if whose else None
            # Earlier versions had no floor.
            floor = int(found.pop("floor", np.array(1)))
            return cls(run=run, user_ids=user_ids, users=users, floor=floor, **found)
        except (SafetensorError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise StorageError(
                f"This is not the data of a count: {error}.",
                remedy=DAMAGED,
            ) from error


def _packed(value: str | tuple[UserId, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
