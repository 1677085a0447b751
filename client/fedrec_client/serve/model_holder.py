"""Hold the served model: its data, its next version, and its problems."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import structlog
from structlog import get_logger

from fedrec import errors
from fedrec.data.reading import DataSettings
from fedrec.errors import DataError, FedrecError, InternalError, SettingsError, StorageError
from fedrec.extras import how_to_install
from fedrec.follower.database import change_counter
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.processes import child_command, ignore_stop_signals
from fedrec.recommender import Recommender, UsersFile
from fedrec.recommender.ranking import Ids, Scores
from fedrec.recommender.tail import TailFigures
from fedrec.settings.schema import ClientSettings, Settings
from fedrec_client.own_recommender import (
    Wanted,
    model_file_of,
    needs_training_code,
    private_of,
    tail_of,
    users_of,
)
from fedrec_client.serve.request_reading import Recommend, Refusal, Similar
from fedrec_client.state.held_model import (
    HeldModel,
    ModelName,
    Which,
    name_of_held_model,
    read_held_model,
)

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A version of the model, with the fixed parts of its answers.

    A request's handler uses only one of these, so that an answer comes from a single version.

    Attributes:
        run: the run that the model belongs to.
        named: the results of `_named` so far.
    """

    recommender: Recommender
    run: str
    named: dict[str, str] = field(default_factory=dict)

    def recommend(self, question: Recommend) -> bytes:
        """Return the answer to a question, as JSON.

        Raises:
            Refusal: the user or item is unknown, or the history has no learned item.
            StorageError: the user's stored data can no longer be read.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        wanted = self._wanted(question, unknown)
        if question.user and not own.knows(question.user):
            raise Refusal(
                "unknown_user",
                "The model's data has no such user of this client.",
                "Give an id as in the data file, or a history for a new user.",
            )
        if question.user and not question.recent:
            return self._answer(wanted.for_users(own, question.user), unknown, basis="user")
        had = own.history_of(question.user) if question.user else []
        had += self._known(question.recent or question.history, unknown)
        if not any(map(own.learned, had)):
            raise Refusal(
                "never_learned",
                "The model has learned no item of the history.",
                "Give items that more users hold.",
            )
        try:
            found = wanted.for_history(own, had)
        except SettingsError as error:
            raise Refusal("no_fold_in", error.message, "Ask for a known user.") from None
        return self._answer(found, unknown, basis="history")

    def similar(self, question: Similar) -> bytes:
        """Return the items most similar to one, as JSON.

        Raises:
            Refusal: the item is unknown or was never learned.
        """
        own, unknown = self.recommender, _Unknown(ignored=question.ignore_unknown)
        wanted = self._wanted(question, unknown)
        if question.item not in own.catalogue:
            raise _unknown_item([question.item])
        try:
            found = wanted.like_item(own, question.item)
        except DataError as error:
            raise Refusal("never_learned", error.message, error.remedy) from None
        return self._answer(found, unknown, basis="item")

    def _wanted(self, question: Recommend | Similar, unknown: _Unknown) -> Wanted:
        candidates = None
        if question.candidates is not None:
            candidates = self._known(question.candidates, unknown)
        return Wanted(
            n=question.n,
            exclude_seen=isinstance(question, Similar) or question.exclude_seen,
            exclude=self._known(question.exclude, unknown),
            candidates=candidates,
        )

    def _known(self, items: Sequence[str], unknown: _Unknown) -> list[str]:
        catalogue = self.recommender.catalogue
        missing = [item for item in items if item not in catalogue]
        if not missing:
            return list(items)
        if not unknown.ignored:
            raise _unknown_item(missing)
        unknown.items += missing
        return [item for item in items if item in catalogue]

    def _answer(self, found: tuple[Ids, Scores], unknown: _Unknown, *, basis: str) -> bytes:
        ids, scores = found[0].tolist(), found[1].tolist()
        if not math.isfinite(sum(scores)):
            raise Refusal("internal", "The model has values that are not finite numbers.")
        # A float32 is a JSON number without loss, so a reader gets the same bits.
        items = ",".join(
            f'{{"rank":{rank},{self._named(item)},"score":{score!r}}}'
            for rank, (item, score) in enumerate(zip(ids, scores, strict=True), 1)
        )
        answer: dict[str, object] = {
            "version": int(self.recommender.round),
            "run": self.run,
            "basis": basis,
        }
        if unknown.ignored:
            answer["ignored"] = list(dict.fromkeys(unknown.items))
        return f'{_ENCODE(answer)[:-1]},"items":[{items}]}}'.encode()

    def _named(self, item: str) -> str:
        """Return an item's id and title as JSON, computed once to save most of the time."""
        known = self.named.get(item)
        if known is None:
            title = self.recommender.catalogue.title_of(item)
            known = self.named[item] = f'"item_id":{_ENCODE(item)},"title":{_ENCODE(title)}'
        return known


class _Unknown:
    """Items in a request that are not in the catalogue."""

    def __init__(self, *, ignored: bool) -> None:
        self.ignored = ignored
        self.items: list[str] = []


def _unknown_item(missing: Sequence[str]) -> Refusal:
    shown = ", ".join(repr(item[:80]) for item in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return Refusal(
        "unknown_item",
        f"The model's catalogue does not have {shown}{more}.",
        "Give items as in the catalogue, or set ignore_unknown = true to skip others.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChange:
    """A new served version, or a version that could not be read.

    Attributes:
        version: the served version, or None.
        run: its run, or empty without one.
        tail: about the items that don't travel, if `client.tail` is set.
        problem: why a newer version is not served, or empty.
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
    log = structlog.get_logger("fedrec.client")
    said = {key: value for key, value in asdict(change).items() if value not in ("", None)}
    if not change.problem:
        log.info("version served", **said)
    elif change.version is None:
        log.warning("not ready", **said)
    else:
        log.warning("version stays in service", **said)


_ERROR, _USERS = b"E", b"U"


_Read = tuple[UsersFile, TailFigures | None]


def read_users_apart(settings: Settings, which: Which, version: RoundId) -> _Read:
    """Read the users with their histories, and with parameters if those must be computed.

    If the state folder already has the parameters, `private` is empty. With `client.tail` the
    weight of the items that don't travel is chosen, too.

    Args:
        version: the version for which users are needed.

    Raises:
        StorageError: the folder has moved on, or cannot be read.
        DataError: the data cannot be used.
    """
    asked = {
        "data": settings.data.model_dump(mode="json"),
        "client": settings.client.model_dump(mode="json"),
        "which": which,
        "version": version,
    }
    done = subprocess.run(
        child_command(__name__),
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    kind, content = done.stdout[:1], done.stdout[1:]
    if done.returncode or kind not in (_ERROR, _USERS):
        raise StorageError(
            f"The process that reads the users' data ended with {done.returncode}.",
            remedy="See the lines above. It may need more memory.",
        )
    if kind == _ERROR:
        said = json.loads(content)
        type_of = errors.ERRORS.get(said["code"], StorageError)
        raise type_of(said["message"], remedy=said["remedy"])
    figures, _, content = content.partition(b"\n")
    tail = TailFigures(**found) if (found := json.loads(figures)) else None
    return UsersFile.from_bytes(content, "the users' data"), tail


def _users(held: HeldModel, settings: Settings) -> _Read:
    users, tail = users_of(settings, held), None
    private = private_of(settings.client, held, users)
    if settings.client.tail:
        tail = tail_of(settings.client, held, users, private)
    if not needs_training_code(held):
        private = PrivateState.of({})
    return UsersFile.of(users, private), tail


def _main() -> None:
    # Ctrl-C reaches the whole process group, but the serving process ends this one.
    ignore_stop_signals()
    # Output of libraries must not mix with the bytes.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    settings = Settings(
        data=DataSettings.model_validate(asked["data"]),
        client=ClientSettings.model_validate(asked["client"]),
    )
    try:
        held = read_held_model(settings, asked["which"])
        if held.version != asked["version"]:
            raise StorageError("The state folder has moved on to another version in the meantime.")
        users, tail = _users(held, settings)
    except FedrecError as error:
        said = {"code": error.code, "message": error.message, "remedy": error.remedy}
        answers.write(_ERROR + json.dumps(said).encode())
    else:
        answers.write(_USERS + json.dumps(tail and asdict(tail)).encode() + b"\n")
        answers.writelines(users.parts())
    answers.flush()


_Stamp = tuple[tuple[int, int, int], ...] | None
_Stamps = tuple[bytes | None, _Stamp, _Stamp]
"""Stamps of the state, the catalogue and the data file."""
_UsersKey = tuple[_Stamp, str, str]
"""The data file, its users, and the catalogue with the rows of their histories."""
_LONGEST_PAUSE = 64
"""The largest number of looks after which reading is tried again."""
_ReadUsers = Callable[[Settings, Which, RoundId], _Read]


class ModelHolder:
    """The model in a client's state folder, which is only read.

    If a model cannot be read, the previous one stays in service, and reading is tried again.

    Args:
        settings: the client's.
        which: the model that measured best on validation, or the latest one.
        on_change: called with each change.
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
        self._looked_at: _Stamps | tuple[()] = ()
        self._name: ModelName | None = None
        self._users: tuple[_UsersKey, UsersFile] | None = None
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
            self._take(data_changed=stamps[1:] != self._looked_at[1:])
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
        client = self._settings.client
        # The weight of the tail belongs to a version, as parameters do that must be computed.
        users, tail = self._users_of(held, fresh=client.tail or needs_training_code(held))
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

    def _users_of(self, held: HeldModel, *, fresh: bool) -> _Read:
        """Return the users and their histories, reading them only if they may have changed."""
        key = (self._stamps()[2], held.pin.users, held.pin.catalogue_fingerprint)
        if self._users is not None and self._users[0] == key and not fresh:
            return self._users[1], None
        users, tail = self._read_users(self._settings, self._which, held.version)
        if not fresh:
            self._users = (key, users)
        return users, tail


def _stamp(path: Path) -> _Stamp:
    """Return a stamp that changes with a file's or folder's content, or None without it."""
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


if __name__ == "__main__":
    _main()
