"""The device for training, the memory it may use there, and private tables on it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.errors import SettingsError
from fedrec.model.blocked_table import Table
from fedrec.model.state import PrivateState
from fedrec.model.tables import TableRoom, array_of, rows_of

_NAMES = re.compile(r"auto|cpu|cuda|cuda:(?P<index>0|[1-9][0-9]{0,3})")
_ALLOWED = "auto, cpu, cuda or cuda:N, where N counts CUDA devices from 0"
_SHARE_OF_FREE = 0.6
"""The share of a device's free memory used by default. torch's allocator leaves gaps, and the
libraries that it calls need memory too."""


def choose_device(name: str) -> torch.device:
    """Return the device that `client.device` names. A CUDA device comes with its index.

    `auto` is the first CUDA device if there is one. Other kinds of device (mps, xpu, ...) lack
    float64 or reliable int64 sums, and training was never tested on them.

    Raises:
        SettingsError: the name is unknown, or this machine has no such device.
    """
    known = _NAMES.fullmatch(name)
    if known is None:
        raise SettingsError(
            f'client.device is "{name}". Allowed values are {_ALLOWED}.',
            remedy='Set client.device = "auto", which uses CUDA if the machine has it.',
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index, n_devices = int(known["index"] or 0), torch.cuda.device_count()
    if not torch.cuda.is_available() or not n_devices:
        raise SettingsError(
            f'client.device is "{name}", but torch {torch.__version__} finds no CUDA device.',
            remedy='Set client.device = "auto" or "cpu", or install a CUDA build of torch and a '
            "driver. `fedrec doctor` shows what torch finds.",
        )
    if index >= n_devices:
        there = "only cuda:0" if n_devices == 1 else f"cuda:0 to cuda:{n_devices - 1}"
        raise SettingsError(
            f'client.device is "{name}", but torch finds {there}.',
            remedy="Set client.device to a device that torch finds. If one is missing, check "
            "CUDA_VISIBLE_DEVICES.",
        )
    return torch.device("cuda", index)


def memory_on(device: torch.device, device_memory_mib: int) -> int:
    """Return the bytes of a CUDA device that training may use, or 0 on a CPU.

    Args:
        device_memory_mib: `client.device_memory_mib`, or 0 for a share of the free memory.
    """
    if device.type != "cuda":
        return 0
    if device_memory_mib:
        return device_memory_mib << 20
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * _SHARE_OF_FREE)


class UserTables(ABC):
    """The tables at the start of a round and those at its end.

    Attributes:
        finite: whether all new values are finite.
    """

    finite: bool = True

    @abstractmethod
    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return copies of some users' rows by name, on the training device."""

    @abstractmethod
    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Store some users' new rows."""

    @abstractmethod
    def finish(self) -> PrivateState:
        """Return the state after the round. Users without new rows keep their old ones."""


class DeviceTables:
    """Keep a learner's latest private tables on its device between rounds.

    At the end of a round, the tables come to the processor's memory in one transfer, to be stored
    and compared there. The next round and measuring still find them on the device. On a CPU,
    nothing is kept, because the arrays are the tables.

    Args:
        n_bytes: the memory for tables on the device, or None on a CPU. A round needs them
            twice, in their old and their new state. If both don't fit, the tables stay in the
            processor's memory, and only a chunk's rows move to the device.
    """

    def __init__(self, device: torch.device, n_bytes: int | None) -> None:
        self.device = device
        self._n_bytes = n_bytes
        self._held: dict[str, tuple[Table, torch.Tensor]] = {}

    def have_room_for(self, private: PrivateState) -> bool:
        """Return whether a round's tables fit on the device."""
        if self._n_bytes is None:
            return False
        return 2 * sum(values.nbytes for values in private.tensors.values()) <= self._n_bytes

    def copies(self, private: PrivateState) -> dict[str, torch.Tensor]:
        """Return new tensors on the device with a state's values."""
        found = {}
        for name, values in private.tensors.items():
            held = self._of(name, values)
            if held is None:
                held = torch.from_numpy(array_of(values))
            # Copy even if nothing moves, because the caller writes into the tensors.
            found[name] = held.to(self.device, copy=True)
        return found

    def rows(
        self, private: PrivateState, rows: NDArray[np.int64], names: Collection[str]
    ) -> dict[str, torch.Tensor]:
        """Return some users' rows of the named tables, on the device."""
        found = {}
        for name in private.tensors.keys() & names:
            values = private.tensors[name]
            held = self._of(name, values)
            if held is None:
                found[name] = torch.from_numpy(rows_of(values, rows)).to(self.device)
            else:
                found[name] = held[torch.from_numpy(rows).to(self.device)]
        return found

    def keep(self, arrays: Mapping[str, Table], tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep tables on the device in place of those of the previous round.

        Args:
            arrays: the same values in the processor's memory, which must not change.
        """
        self._held = {name: (values, tensors[name]) for name, values in arrays.items()}

    def _of(self, name: str, values: Table) -> torch.Tensor | None:
        array, tensor = self._held.get(name, (None, None))
        return tensor if array is values else None


class HeldTables(UserTables):
    """Keep all tables on the training device."""

    def __init__(self, private: PrivateState, on_device: DeviceTables) -> None:
        self._on_device = on_device
        self._tensors = on_device.copies(private)

    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return copies of some users' rows."""
        return {name: values[user_index] for name, values in self._tensors.items()}

    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Write rows in place. Their values are checked at the end."""
        for name, values in rows.items():
            self._tensors[name][user_index] = values

    def finish(self) -> PrivateState:
        """Return the tables in the processor's memory, and also keep them on the device."""
        self.finite = _finite(self._tensors)
        arrays = {name: _on_processor(values) for name, values in self._tensors.items()}
        self._on_device.keep(arrays, self._tensors)
        return PrivateState(MappingProxyType(arrays))


class ChunkTables(UserTables):
    """Keep only a chunk's rows on the device, and make new tables in addition to the old ones.

    Both sets are in the processor's memory or in files (see `fedrec.model.tables`). Rows are copied
    once in each direction, as numpy arrays. numpy uses large memory pages for large arrays. torch's
    own copies take five times as long.
    """

    def __init__(self, private: PrivateState, room: TableRoom, device: torch.device) -> None:
        self._old = private.tensors
        n_users = len(next(iter(private.tensors.values())))
        self._new = room.new(n_users, private.widths())
        self._device = device

    def take(self, user_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Read some users' rows from the old tables."""
        rows = user_index.cpu().numpy()
        return {
            name: torch.from_numpy(rows_of(values, rows)).to(self._device)
            for name, values in self._old.items()
        }

    def put(self, user_index: torch.Tensor, rows: Mapping[str, torch.Tensor]) -> None:
        """Write some users' rows to the new tables."""
        where = user_index.cpu().numpy()
        self.finite = self.finite and _finite(rows)
        for name, values in rows.items():
            self._new[name].write(where, values.cpu().numpy())

    def finish(self) -> PrivateState:
        """Copy the rows of all other users, and return the state."""
        return PrivateState.of(
            {name: table.finish(self._old[name]) for name, table in self._new.items()}
        )


def _on_processor(values: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor's values as an array, without a copy if they are in that memory.

    numpy uses large memory pages for large arrays, and torch does not.
    """
    if values.device.type == "cpu":
        return values.numpy()
    found = np.empty(values.shape, dtype=torch.empty(0, dtype=values.dtype).numpy().dtype)
    torch.from_numpy(found).copy_(values)
    return found


def _finite(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return whether all values are finite."""
    # Both are NaN if any value is NaN, and neither makes a table of its own.
    ends = [
        end.to(torch.float64)
        for values in tensors.values()
        if values.numel()
        for end in torch.aminmax(values)
    ]
    return bool(torch.isfinite(torch.stack(ends)).all()) if ends else True


def open_tables(private: PrivateState, room: TableRoom, on_device: DeviceTables) -> UserTables:
    """Return a round's tables: on the device, in memory or in files, wherever they fit."""
    if private.tensors and (private.in_files or not on_device.have_room_for(private)):
        return ChunkTables(private, room, on_device.device)
    return HeldTables(private, on_device)
