"""A party's private tables during a round: a chunk's rows out, its trained rows back in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from fedrec.model.state import PrivateState
from fedrec.model.tables import TableRoom, copy_rows, is_mapped, rows_of

__all__ = ["UserTables", "open_tables"]


class UserTables(ABC):
    """The tables that a round starts from and those that it leaves behind.

    Attributes:
        finite: whether all values that were put back were finite.
    """

    finite: bool = True

    @abstractmethod
    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return some users' rows by name, on the training device."""

    @abstractmethod
    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Keep some users' new rows."""

    @abstractmethod
    def finish(self) -> PrivateState:
        """Return the state after the round: users who were not put back keep what they had."""


class HeldTables(UserTables):
    """Everything on the training device."""

    def __init__(self, private: PrivateState, device: torch.device) -> None:
        self._tensors = {
            name: torch.from_numpy(values.copy()).to(device)
            for name, values in private.tensors.items()
        }

    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return copies of rows."""
        return {name: values[user_index] for name, values in self._tensors.items()}

    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Write rows in place; they are looked at when all are there."""
        for name, values in rows.items():
            self._tensors[name][user_index] = values

    def finish(self) -> PrivateState:
        """Return the tables, moved to the processor's memory."""
        arrays = {name: values.cpu().numpy() for name, values in self._tensors.items()}
        self.finite = all(bool(np.isfinite(values).all()) for values in arrays.values())
        return PrivateState(MappingProxyType(arrays))


class MappedTables(UserTables):
    """Only a chunk's rows in memory; new tables are written beside the old ones."""

    def __init__(self, private: PrivateState, room: TableRoom, device: torch.device) -> None:
        self._old = private.tensors
        self._n_users = len(next(iter(private.tensors.values())))
        self._new = room.empty(
            self._n_users, {name: values.shape[1:] for name, values in self._old.items()}
        )
        self._device = device
        self._put_back = np.zeros(self._n_users, dtype=np.bool_)

    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Read rows from the old tables."""
        rows = user_index.cpu().numpy()
        return {
            name: torch.from_numpy(rows_of(values, rows)).to(self._device)
            for name, values in self._old.items()
        }

    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Write rows to the new tables."""
        where = user_index.cpu().numpy()
        self._put_back[where] = True
        for name, values in rows.items():
            array = values.cpu().numpy()
            self.finite = self.finite and bool(np.isfinite(array).all())
            copy_rows(array, self._new[name], from_rows=np.arange(len(where)), to_rows=where)

    def finish(self) -> PrivateState:
        """Copy everybody else's rows."""
        others = np.nonzero(~self._put_back)[0]
        for name, values in self._old.items():
            copy_rows(values, self._new[name], from_rows=others, to_rows=others)
        return PrivateState(MappingProxyType(self._new))


def open_tables(private: PrivateState, room: TableRoom, device: torch.device) -> UserTables:
    """Return a round's tables, in memory where they fit."""
    if any(map(is_mapped, private.tensors.values())):
        return MappedTables(private, room, device)
    return HeldTables(private, device)
