"""Hold the served model: its data, its next version, and its problems."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from structlog import get_logger

from fedrec.errors import FedrecError, InternalError, SettingsError
from fedrec.extras import how_to_install
from fedrec.follower.database import change_counter
from fedrec.ids import RoundId
from fedrec.recommender import Recommender, UsersFile
from fedrec.settings.schema import Settings
from fedrec_client.own_recommender import model_file_of, needs_training_code
from fedrec_client.serve.served_model import ServedModel
from fedrec_client.serve.users_apart import UsersAndTail, read_users_apart
from fedrec_client.state.held_model import (
    HeldModel,
    ModelName,
    Which,
    name_of_held_model,
    read_held_model,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """A new served version, or a version that could not be read.

    Attributes:
        version: the served version, or None.
        run: its run, or empty if there is none.
        tail: figures of the items that don't travel, if `client.tail` is set.
        problem: the reason why a newer version is not served, or empty.
    """

    version: RoundId | None
    run: str = ""
    tail: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.version is None:
            return f"not ready: {self.problem}"
        if self.problem:
            return f"version {self.version} stays in service: {self.problem}"
        tail = f" (tail at home: {self.tail})" if self.tail else ""
        return f"version {self.version} is served{tail}"


def log_change(change: ModelChange) -> None:
    """Write one line about the change."""
    log = get_logger("fedrec.client")
    fields = {key: value for key, value in asdict(change).items() if value not in ("", None)}
    if not change.problem:
        log.info("version served", **fields)
    elif change.version is None:
        log.warning("not ready", **fields)
    else:
        log.warning("version stays in service", **fields)


_Stamp = tuple[tuple[int, int, int], ...] | None


class _Stamps(NamedTuple):
    """Stamps of what a model is made of, which change with its content."""

    state: bytes | None
    catalogue: _Stamp
    data: _Stamp

    def has_data_of(self, before: _Stamps | None) -> bool:
        """Return whether the catalogue and the data file are those of an earlier look."""
        return before is not None and (self.catalogue, self.data) == (before.catalogue, before.data)


_UsersKey = tuple[_Stamp, str, str]
"""The data file, its users, and the catalogue with the rows of their histories."""
_LONGEST_PAUSE = 64
"""The largest number of looks after which reading is tried again."""
_ReadUsers = Callable[[Settings, Which, RoundId], UsersAndTail]


class ModelHolder:
    """The model in a client's state folder, which is only read.

    If a model cannot be read, the previous one stays in service, and reading is tried again.

    Args:
        settings: the settings of the client.
        which: the model that measured best on validation, or the latest one.
        on_change: a function that is called with each change.
        read_users: reads the users' data, as `read_users_apart` does.
    """

    def __init__(
        self,
        settings: Settings,
        which: Which = "best",
        *,
        on_change: Callable[[ModelChange], None] = lambda change: None,
        read_users: _ReadUsers = read_users_apart,
    ) -> None:
        self._settings = settings
        self._which: Which = which
        self._on_change = on_change
        self._read_users = read_users
        self._looked_at: _Stamps | None = None
        self._name: ModelName | None = None
        self._kept_users: tuple[_UsersKey, UsersFile] | None = None
        self._wanted = asyncio.Event()
        self._failures = 0
        self._pause = 0
        self.current: ServedModel | None = None
        self.problem: FedrecError | None = None

    def look(self) -> None:
        """Load the folder's model if it has changed, or if it is time to try again."""
        stamps = self._stamps()
        if stamps == self._looked_at:
            if self.problem is None:
                return
            self._pause -= 1
            if self._pause > 0:
                return
        else:
            self._failures = 0
        try:
            self._take(data_changed=not stamps.has_data_of(self._looked_at))
        except Exception as error:
            self._fail(_as_known(error))
        else:
            self.problem, self._failures = None, 0
        # Changes during the reading are found by the next look.
        self._looked_at = stamps

    def _fail(self, error: FedrecError) -> None:
        """Keep the served version, and report a new problem once."""
        if self.problem is None or str(self.problem) != str(error):
            self._on_change(_change_of(self.current, str(error)))
        self.problem = error
        self._failures += 1
        self._pause = min(2**self._failures, _LONGEST_PAUSE)

    def look_soon(self) -> None:
        """Make `follow` read everything again now, because a file is unexpectedly missing."""
        self._wanted.set()

    async def follow(self, every_seconds: float) -> None:
        """Look repeatedly, in a thread, until cancelled."""
        while True:
            if self._wanted.is_set():
                # Before the look, because a request during it may need a further look.
                self._wanted.clear()
                self._looked_at, self._name = None, None
            await asyncio.to_thread(self.look)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), every_seconds)

    def _stamps(self) -> _Stamps:
        data, folder = self._settings.data, Path(self._settings.client.state)
        catalogue = folder / "catalogue.csv" if data.catalogue is None else Path(data.catalogue)
        return _Stamps(
            state=change_counter(folder),
            catalogue=_stamp(catalogue),
            data=None if data.path is None else _stamp(Path(data.path)),
        )

    def _take(self, *, data_changed: bool) -> None:
        name = name_of_held_model(self._settings, self._which)
        if name == self._name and not data_changed and self.problem is None:
            return
        held = read_held_model(self._settings, self._which)
        client = self._settings.client
        # The weight of the tail belongs to a version, as parameters do that must be computed.
        users, tail = self._users_for(held, fresh=client.tail or needs_training_code(held))
        if not users.private.tensors and held.private is not None:
            users = replace(users, private=held.private)
        recommender = Recommender(model_file_of(held), held.catalogue, users)
        if tail is not None:
            recommender = recommender.with_tail(client.tail_minimum_users, tail)
        # A warm-up prepares what later requests need. An algorithm that scores with torch imports
        # it here.
        recommender.recommend(recommender.user_ids[:1], 1)
        before = self.current
        self.current = ServedModel(recommender=recommender, run=held.pin.run)
        self._name = name
        if before is None or before.recommender.round != held.version:
            self._on_change(_change_of(self.current))

    def _users_for(self, held: HeldModel, *, fresh: bool) -> UsersAndTail:
        """Return the users and their histories, reading them only if they may have changed."""
        key = (self._stamps().data, held.pin.users, held.pin.catalogue_fingerprint)
        if self._kept_users is not None and self._kept_users[0] == key and not fresh:
            return self._kept_users[1], None
        users, tail = self._read_users(self._settings, self._which, held.version)
        if not fresh:
            self._kept_users = (key, users)
        return users, tail


def _stamp(path: Path) -> _Stamp:
    """Return a stamp that changes with the content of a path, or None if there is nothing."""
    try:
        found = [os.stat(each) for each in (path, *sorted(path.rglob("*")))]
    except OSError:
        return None
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def _as_known(error: Exception) -> FedrecError:
    if isinstance(error, FedrecError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        return SettingsError(
            f"This model's algorithm needs {error.name}, which is not installed.",
            remedy=f"Install it with: {how_to_install(error.name)}",
        )
    get_logger("fedrec.client").error("reading the model failed", exc_info=error)
    return InternalError(f"Reading the model ended with {type(error).__name__}.")


def _change_of(served: ServedModel | None, problem: str = "") -> ModelChange:
    if served is None:
        return ModelChange(version=None, problem=problem)
    recommender = served.recommender
    tail = "" if recommender.tail is None else str(recommender.tail)
    return ModelChange(version=recommender.round, run=served.run, tail=tail, problem=problem)
