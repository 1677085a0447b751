"""Holding the model that is served, and taking the next one when it is published."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from structlog import get_logger

from fedrec.config.schema import Settings
from fedrec.errors import FedrecError, InternalError, SettingsError
from fedrec.extras import how_to_install
from fedrec.ids import RoundId
from fedrec.recommender import Recommender, UsersFile
from fedrec_client.recommending.own_recommender import model_file_of, needs_training_code
from fedrec_client.serve.data_reading import read_users_apart
from fedrec_client.serve.model_change import ModelChange
from fedrec_client.serve.served_model import ServedModel
from fedrec_client.state.database import change_counter
from fedrec_client.state.held_model import (
    HeldModel,
    ModelName,
    Which,
    name_of_held_model,
    read_held_model,
)

__all__ = ["ModelHolder"]

_Stamp = tuple[tuple[int, int, int], ...] | None
_Stamps = tuple[bytes | None, _Stamp, _Stamp]
"""Of the state, the catalogue and the data file."""
_UsersKey = tuple[_Stamp, str, str]
"""The data file, its users, and the catalogue whose rows their histories are."""
_LONGEST_PAUSE = 64
"""Looks after which what could not be read is tried again at the latest."""
_ReadUsers = Callable[[Settings, Which, RoundId], UsersFile]


class ModelHolder:
    """The model in a client's state folder, as it stands there; only ever reads.

    A model that cannot be read leaves the one before it in service, and is tried again.

    Args:
        settings: the client's.
        which: the model that measured best on validation, or the latest one.
        on_change: told what became of it.
        read_users: reads the users' data; see `read_users_apart`.
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
        self._looked_at: _Stamps | tuple[()] = ()
        self._name: ModelName | None = None
        self._users: tuple[_UsersKey, UsersFile] | None = None
        self._wanted = asyncio.Event()
        self._failures = 0
        self._pause = 0
        self.current: ServedModel | None = None
        self.problem: FedrecError | None = None

    def look(self) -> None:
        """Take what the folder has, if it has changed, or if it is time to try again."""
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
            self._take(data_changed=stamps[1:] != self._looked_at[1:])
        except Exception as error:
            self._fail(_as_known(error))
        else:
            self.problem, self._failures = None, 0
        # What is written while this was read is seen by the next look.
        self._looked_at = stamps

    def _fail(self, error: FedrecError) -> None:
        """Keep what is served, and say what is wrong unless that was said before."""
        if self.problem is None or str(self.problem) != str(error):
            self._on_change(_change_of(self.current, str(error)))
        self.problem = error
        self._failures += 1
        self._pause = min(2**self._failures, _LONGEST_PAUSE)

    def look_soon(self) -> None:
        """Have `follow` read all anew now, because a file that should be there is not."""
        self._wanted.set()

    async def follow(self, every_seconds: float) -> None:
        """Look again and again, in a thread, until cancelled."""
        while True:
            if self._wanted.is_set():
                # Before the look: whoever asks during it may ask for more than it finds.
                self._wanted.clear()
                self._looked_at, self._name = (), None
            await asyncio.to_thread(self.look)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), every_seconds)

    def _stamps(self) -> _Stamps:
        data, folder = self._settings.data, Path(self._settings.client.state)
        catalogue = folder / "catalogue.csv" if data.catalogue is None else Path(data.catalogue)
        return (
            change_counter(folder),
            _stamp(catalogue),
            None if data.path is None else _stamp(Path(data.path)),
        )

    def _take(self, *, data_changed: bool) -> None:
        name = name_of_held_model(self._settings, self._which)
        if name == self._name and not data_changed and self.problem is None:
            return
        held = read_held_model(self._settings, self._which)
        users = self._users_of(held, fresh=needs_training_code(held))
        if not users.private.tensors and held.private is not None:
            users = replace(users, private=held.private)
        recommender = Recommender(model_file_of(held), held.catalogue, users)
        # The first question makes ready what the others find; an algorithm that scores with torch
        # imports it here.
        recommender.recommend(recommender.user_ids[:1], 1)
        before = self.current
        self.current = ServedModel(recommender=recommender, run=held.pin.run)
        self._name = name
        if before is None or before.recommender.round != held.version:
            self._on_change(_change_of(self.current))

    def _users_of(self, held: HeldModel, *, fresh: bool) -> UsersFile:
        """Return the users and their histories, read again only if they may be others."""
        key = (self._stamps()[2], held.pin.users, held.pin.catalogue_fingerprint)
        if self._users is not None and self._users[0] == key and not fresh:
            return self._users[1]
        users = self._read_users(self._settings, self._which, held.version)
        if not fresh:
            self._users = (key, users)
        return users


def _stamp(path: Path) -> _Stamp:
    """Return what changes with the content of a file or folder, or None where there is none."""
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
    return ModelChange(version=served.recommender.round, run=served.run, problem=problem)
