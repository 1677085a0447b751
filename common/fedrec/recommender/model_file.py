"""The files of a trained model: the shared model, and the users' own data.

`model.safetensors` holds the shared model with the plan, the catalogue's fingerprint and the round.
If encryption hides it from the coordinator, a client exports it with mode 0600. `users.safetensors`
(mode 0600) holds user vectors and histories. It exists only in a simulation, where the users' data
is anyway. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from fedrec.data.splits import UserSplit
from fedrec.durable import write_whole
from fedrec.errors import DataError, FedrecError, StorageError
from fedrec.formats import CHECKPOINT_FILE, check_format, format_number
from fedrec.ids import RoundId, UserId
from fedrec.model.blocked_table import Table
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tensor_file import file_parts, mapped_tensors
from fedrec.plan.agreement import plan_from_json, plan_to_json
from fedrec.plan.schema import Plan

MODEL_NAME = "model.safetensors"
USERS_NAME = "users.safetensors"
_MODEL_FORMAT = "fedrec model"
_USERS_FORMAT = "fedrec users"
_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """The shared model of a round, with the data needed to read it.

    Attributes:
        round: the version of the model, which is the round that published it.
    """

    plan: Plan
    catalogue_fingerprint: str
    round: RoundId
    shared: SharedState

    def save(self, path: Path, *, private: bool = False) -> None:
        """Write the model, atomically replacing a file of that name.

        Args:
            private: whether only the owner may read it, for a confidential model.
        """
        arrays: dict[str, NDArray[Any]] = {
            f"shared.{name}": np.asarray(value, order="C")
            for name, value in self.shared.tensors.items()
        }
        if self.shared.holders is not None:
            arrays["holders"] = self.shared.holders
        metadata = {
            "format": _MODEL_FORMAT,
            "version": str(_VERSION),
            "plan": plan_to_json(self.plan).decode(),
            "catalogue_fingerprint": self.catalogue_fingerprint,
            "round": str(self.round),
        }
        write_whole(path, file_parts(arrays, metadata), private=private)

    @classmethod
    def load(cls, path: Path) -> ModelFile:
        """Read a file that `save` wrote.

        Raises:
            StorageError: the file is missing, damaged or not a model.
            VersionMismatch: the file has a different format.
        """
        metadata, arrays = _read(path, _MODEL_FORMAT)
        holders = arrays.pop("holders", None)
        if not arrays or not all(name.startswith("shared.") for name in arrays):
            raise _damaged(path, f"its tensors are {sorted(arrays)}")
        try:
            return cls(
                plan=plan_from_json(metadata["plan"].encode()),
                catalogue_fingerprint=metadata["catalogue_fingerprint"],
                round=RoundId(int(metadata["round"])),
                shared=SharedState(
                    MappingProxyType(
                        {
                            name.removeprefix("shared."): value.astype(np.float64)
                            for name, value in arrays.items()
                        }
                    ),
                    None if holders is None else holders.astype(np.int64),
                ),
            )
        except (KeyError, ValueError, FedrecError) as error:
            raise _damaged(path, f"its metadata cannot be used ({error})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersFile:
    """Users' own vectors and histories, which never leave their machine.

    Attributes:
        user_ids: n_users ids.
        private: their private parameters, first axis n_users.
        seen_indptr: int64 (n_users + 1,). User u's items are
            ``seen_items[seen_indptr[u]:seen_indptr[u + 1]]``, ascending catalogue rows.
    """

    user_ids: tuple[UserId, ...]
    private: PrivateState
    seen_indptr: NDArray[np.int64]
    seen_items: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"UsersFile({len(self.user_ids):,} users, {self.private!r})"

    @classmethod
    def of(cls, users: UserSplit, private: PrivateState) -> UsersFile:
        """Build it from a split. The histories include the held-out items."""
        whole = users.whole()
        return cls(
            user_ids=users.user_ids,
            private=private,
            seen_indptr=whole.train_indptr,
            seen_items=np.asarray(whole.train_items),
        )

    def seen_of(self, user_index: int) -> NDArray[np.int64]:
        """Return the catalogue rows of one user's history, ascending."""
        return self.seen_items[self.seen_indptr[user_index] : self.seen_indptr[user_index + 1]]

    def save(self, path: Path) -> None:
        """Write the users' data with mode 0600, atomically replacing a file of that name."""
        write_whole(path, self.parts(), private=True)

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes that `save` writes."""
        arrays: dict[str, NDArray[Any] | Table] = {
            f"private.{name}": value for name, value in self.private.tensors.items()
        }
        ids = json.dumps(list(self.user_ids)).encode()
        arrays["user_ids"] = np.frombuffer(ids, dtype=np.uint8)
        arrays["seen_indptr"] = self.seen_indptr
        arrays["seen_items"] = self.seen_items
        metadata = {"format": _USERS_FORMAT, "version": str(_VERSION)}
        return file_parts(arrays, metadata)

    @classmethod
    def from_bytes(cls, raw: bytes, name: str) -> UsersFile:
        """Read the bytes that `parts` yields.

        Args:
            name: a name of the source, for errors.

        Raises:
            StorageError: the file is damaged.
        """
        try:
            arrays: dict[str, NDArray[Any]] = load(raw)
        except (SafetensorError, ValueError) as error:
            raise _damaged(Path(name), f"it cannot be read ({error})") from error
        return cls._of(Path(name), arrays)

    @classmethod
    def load(cls, path: Path) -> UsersFile:
        """Read a file that `save` wrote. Rows of private tables are read on demand.

        Raises:
            StorageError: the file is missing, damaged or something else.
            VersionMismatch: the file has a different format.
        """
        return cls._of(path, _mapped(path, _USERS_FORMAT))

    @classmethod
    def _of(cls, path: Path, arrays: dict[str, Any]) -> UsersFile:
        try:
            ids = json.loads(arrays.pop("user_ids").tobytes())
            indptr = arrays.pop("seen_indptr").astype(np.int64)
            items = arrays.pop("seen_items").astype(np.int64)
        except (KeyError, ValueError) as error:
            raise _damaged(path, f"it has no readable {error}") from error
        private = {
            name.removeprefix("private."): value.astype(np.float32, copy=False)
            for name, value in arrays.items()
        }
        lengths = {len(value) for value in private.values()} | {len(ids), len(indptr) - 1}
        if len(lengths) != 1 or indptr[0] != 0 or indptr[-1] != len(items):
            raise _damaged(path, "its tensors are about different numbers of users")
        return cls(
            user_ids=tuple(map(UserId, ids)),
            private=PrivateState(MappingProxyType(private)),
            seen_indptr=indptr,
            seen_items=items,
        )


def _read(path: Path, expected: str) -> tuple[Mapping[str, str], dict[str, NDArray[Any]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            _check_format(path, metadata, expected)
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _damaged(path, f"it cannot be read ({error})") from error


def _mapped(path: Path, expected: str) -> dict[str, NDArray[Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            _check_format(path, file.metadata() or {}, expected)
        return mapped_tensors(path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise _damaged(path, f"it cannot be read ({error})") from error


def _check_format(path: Path, metadata: Mapping[str, str], expected: str) -> None:
    if metadata.get("format") != expected:
        raise _damaged(path, f'its format is "{metadata.get("format")}", expected "{expected}"')
    found = format_number(metadata.get("version"))
    check_format(found, _VERSION, str(path), anew="train again with this one")


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be used as this kind of file: {why}.",
        remedy="Pass the folder of a finished run, or restore the file from a backup.",
    )


def check_model(folder: Path) -> None:
    """Check that a folder has a model.

    Raises:
        DataError: there is none. The message says why.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a run folder: there is no such folder.",
            remedy="Pass the folder whose path the run printed.",
        )
    if (folder / MODEL_NAME).exists():
        return
    if (folder / CHECKPOINT_FILE).exists():
        raise DataError(
            f"{folder} has no model yet: its simulation was interrupted.",
            remedy=f"Finish it with `fedrec simulate SETTINGS --resume {folder}` or, in Python, "
            "with folder and resume=True of simulate.",
        )
    raise DataError(
        f"{folder} has no {MODEL_NAME}. A coordinator does not have the model, but the clients do.",
        remedy="On a client's machine, run `fedrec recommend SETTINGS --user ID`. To put "
        f"the shared model there, run `fedrec client export-model SETTINGS --to {folder}`.",
    )
