"""Use the model in the state folder: recommendations and exports, without the coordinator.

It uses torch only if the algorithm needs it: for parameters of users that follow from the version
(`Algorithm.refresh`), or for the initial ones.

Under encryption the coordinator never had the model, but every holder of an exported file can read
it. So exporting is a client's decision, and the file is readable by its owner only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data import Catalogue, UserSplit
from fedrec.data.source import check_one_party, read_users
from fedrec.data.splits import leave_one_out, undivided
from fedrec.data.writing import no_formula, prepare_folder
from fedrec.durable import replacing, unwritten
from fedrec.errors import (
    CatalogueMismatch,
    DataError,
    NoInformation,
    SettingsError,
    StorageError,
)
from fedrec.extras import require
from fedrec.follower.stored_state import users_digest
from fedrec.formats import ENVIRONMENT_NAME, check_run_folder
from fedrec.ids import ItemId, RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.layout import protection_of
from fedrec.recommender import (
    CATALOGUE_NAME,
    MODEL_NAME,
    USERS_NAME,
    ModelFile,
    Recommender,
    UsersFile,
)
from fedrec.recommender.ranking import RankedItems
from fedrec.recommender.tail import LocalTail, TailFigures, check_tail_users, figures_of, weighed
from fedrec.settings.schema import ClientSettings, Settings
from fedrec.settings.validation import load_settings
from fedrec_client.state.held_model import HeldModel, Which, read_held_model

if TYPE_CHECKING:
    import pyarrow


def own_recommender(settings: Settings, which: Which = "best") -> Recommender:
    """Return the model of a client's state folder with all of its users.

    It works while the client runs, and without the coordinator.

    Raises:
        SettingsError: the data's settings are not for a single party.
        StorageError: the state folder holds no model, or other users' vectors.
        CatalogueMismatch: the local catalogue is not the one that it was trained with.
        DataError: the data cannot be used.
    """
    check_one_party(settings.data)
    held = read_held_model(settings, which)
    users = own_users(settings, held)
    private = private_of(settings.client, held, users)
    own = Recommender(model_file_of(held), held.catalogue, UsersFile.of(users, private))
    if not settings.client.tail:
        return own
    figures = tail_of(settings.client, held, users, private)
    return own.with_tail(settings.client.tail_minimum_users, figures)


def shared_recommender(settings: Settings, which: Which = "best") -> Recommender:
    """Return the model of a client's state folder without its users.

    Raises:
        StorageError: the state folder holds no model.
        CatalogueMismatch: the local catalogue is not the one that it was trained with.
    """
    held = read_held_model(settings, which)
    return Recommender(model_file_of(held), held.catalogue)


def uninformed(settings: Settings) -> NoInformation | None:
    """Return why the model of a client's state folder must not be used under noise, or None."""
    held = read_held_model(settings, "best")
    if held.plan.privacy.mechanism == "none":
        return None
    try:
        Recommender(model_file_of(held), held.catalogue).check_information()
    except NoInformation as error:
        return error
    return None


def tail_of(
    client: ClientSettings, held: HeldModel, users: UserSplit, private: PrivateState
) -> TailFigures:
    """Return the weight of the items that don't travel, chosen on the client's own validation.

    Raises:
        SettingsError: there are too many users.
    """
    check_tail_users(len(users))
    # Validation uses only training items. Recommendations use whole histories.
    trained = UsersFile(
        user_ids=users.user_ids,
        private=private,
        seen_indptr=users.train_indptr,
        seen_items=np.asarray(users.train_items),
    )
    model = Recommender(model_file_of(held), held.catalogue, trained)
    tail = LocalTail(
        users.train_indptr,
        np.asarray(users.train_items),
        model.travelling,
        client.tail_minimum_users,
    )
    scores = ((np.array([row]), found[None]) for row, found in enumerate(model.scores()))
    at = held.plan.evaluation.at
    return figures_of(tail, weighed(tail, users, scores), at)


def own_users(settings: Settings, held: HeldModel) -> UserSplit:
    """Return the client's users if their vectors are the stored ones.

    Held-out interactions are separated only if training or the tail at home needs it.

    Raises:
        StorageError: the stored vectors belong to different users.
        DataError: the data cannot be used.
    """
    check_one_party(settings.data)
    whole = not (settings.client.tail or needs_training_code(held))
    divide = undivided if whole else leave_one_out
    users, _ = read_users(settings.data, held.catalogue, reader="a client", divide=divide)
    if users_digest(users) != held.pin.users:
        raise StorageError(
            "The data file has other users than the stored vectors.",
            remedy="Use the data file that the client runs with.",
        )
    return users


def needs_training_code(held: HeldModel) -> bool:
    """Return whether users' parameters must be computed, which needs torch."""
    algorithm = algorithm_of(held.plan, len(held.catalogue))
    return algorithm.refreshes or held.private is None


def private_of(client: ClientSettings, held: HeldModel, users: UserSplit) -> PrivateState:
    """Return the users' own parameters that belong to the version."""
    if held.private is not None and not needs_training_code(held):
        return held.private
    from fedrec.training.learner import Learner

    learner = Learner.of(client, held.plan, len(held.catalogue))
    private = learner.local.initial_private(users) if held.private is None else held.private
    return learner.local.refreshed(held.shared, users, private)


def model_file_of(held: HeldModel) -> ModelFile:
    """Return the shared model without data that recommending does not need.

    Counts of items that fewer than `federation.minimum_item_users` hold become 0.
    """
    holders, least = held.shared.holders, held.plan.federation.minimum_item_users
    if holders is not None:
        holders = np.where(holders >= least, holders, 0).astype(np.int64)
    algorithm = algorithm_of(held.plan, len(held.catalogue))
    needed = {name: held.shared.tensors[name] for name in algorithm.recommending}
    return ModelFile(
        plan=held.plan,
        catalogue_fingerprint=held.pin.catalogue_fingerprint,
        round=held.version,
        shared=SharedState(MappingProxyType(needed), holders),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended item."""

    rank: int
    item_id: ItemId
    title: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendations:
    """A user's recommendations, and the round of the model behind them.

    Attributes:
        tail: figures of the items that don't travel, if `client.tail` is set.
    """

    version: RoundId
    items: tuple[Recommendation, ...]
    tail: TailFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted items and their number.

    Attributes:
        n: largest number of items.
        exclude_seen: omit items that a user already has.
        exclude: items that are never returned.
        candidates: items to choose from. None means all.
    """

    n: int = 10
    exclude_seen: bool = True
    exclude: Sequence[str] = ()
    candidates: Sequence[str] | None = None

    def for_users(self, model: Recommender, users: str | Sequence[str]) -> RankedItems:
        """Return the best items for users whose vectors are known. See `Recommender.recommend`."""
        return model.recommend(
            users,
            self.n,
            exclude_seen=self.exclude_seen,
            candidates=self.candidates,
            block=self.exclude,
        )

    def for_history(self, model: Recommender, history: Sequence[str]) -> RankedItems:
        """Return the best items for a user whose vector is computed from a history."""
        return model.recommend_vector(
            model.fold_in(history),
            self.n,
            exclude=history if self.exclude_seen else (),
            candidates=self.candidates,
            block=self.exclude,
            history=history,
        )

    def like_item(self, model: Recommender, item: str) -> RankedItems:
        """Return the items most similar to one. See `Recommender.similar_items`."""
        return model.similar_items(item, self.n, candidates=self.candidates, block=self.exclude)


def recommendations(model: Recommender, found: RankedItems) -> Recommendations:
    """Return a model's answer with ranks and titles."""
    ids, scores = found
    items = tuple(
        Recommendation(
            rank=rank, item_id=ItemId(item), title=model.catalogue.title_of(item), score=score
        )
        for rank, (item, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True), 1)
    )
    return Recommendations(version=model.round, items=items, tail=model.tail)


_USERS_AT_ONCE = 1024
_COLUMNS = ("user_id", "rank", "item_id", "title", "score", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """The written table and its path."""

    file: Path
    version: RoundId
    n_users: int
    n_rows: int


def check_table(file: Path, *, force: bool = False) -> None:
    """Refuse a table's file before anything is read or computed.

    Raises:
        DataError: there is a file already, and `force` is false.
        SettingsError: its ending sets no format.
    """
    form = file.suffix.lower()
    if form not in (".parquet", ".csv"):
        raise SettingsError(
            f"--to {file}: the ending sets the format, but is {form or 'missing'!r}.",
            remedy="Pass FILE.parquet or FILE.csv.",
        )
    if file.exists() and not force:
        raise DataError(
            f"{file} already exists. Nothing was changed.",
            remedy="Choose another file, or give --force to replace it.",
        )
    if form == ".parquet":
        require("pyarrow")


def export_recommendations(
    own: Recommender, file: Path, wanted: Wanted, *, force: bool = False
) -> ExportedTable:
    """Write the best items for all users of a model, readable by their owner only.

    Scores are those of `Recommender.recommend`, bit for bit in Parquet.

    Args:
        file: its ending sets the format: .parquet or .csv.
        wanted: the wanted items and their number for each user.
        force: replace an existing file.

    Raises:
        StorageError: the file cannot be written.
        DataError: there is a file already.
        SettingsError: another ending.
        CatalogueMismatch: an unknown item.
    """
    check_table(file, force=force)
    parts = _Parts(own, wanted)
    try:
        with replacing(file, private=True) as opened:
            (_write_parquet if file.suffix.lower() == ".parquet" else _write_csv)(opened, parts)
    except OSError as error:
        raise unwritten(file, error, "Check that the folder exists and is writable.") from error
    return ExportedTable(
        file=file, version=own.round, n_users=len(own.user_ids), n_rows=parts.n_rows
    )


class _Parts:
    """The table in parts of some users each, as columns.

    Attributes:
        n_rows: number of rows taken so far.
    """

    def __init__(self, own: Recommender, wanted: Wanted) -> None:
        self.own = own
        self._wanted = wanted
        self.n_rows = 0

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        users = np.array(self.own.user_ids, dtype=np.object_)
        for begin in range(0, len(users), _USERS_AT_ONCE):
            some = users[begin : begin + _USERS_AT_ONCE]
            ids, scores = self._wanted.for_users(self.own, some.tolist())
            filled = scores > -np.inf
            ranks = np.broadcast_to(np.arange(1, 1 + scores.shape[1], dtype=np.int32), ids.shape)
            self.n_rows += int(filled.sum())
            yield {
                "user_index": np.repeat(np.arange(len(some)), filled.sum(1)) + begin,
                "rank": ranks[filled],
                "item_row": self.own.catalogue.rows_of(ids[filled].tolist()),
                "score": scores[filled],
            }


def _write_parquet(file: Any, parts: _Parts) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    own = parts.own
    users, items = _texts(own.user_ids), _texts(own.catalogue.item_ids)
    titles = _texts([own.catalogue.title_of(item) for item in own.catalogue.item_ids])
    kinds = (pa.string(), pa.int32(), pa.string(), pa.string(), pa.float32(), pa.int64())
    schema = pa.schema(
        list(zip(_COLUMNS, kinds, strict=True)),
        metadata={"fedrec.version": str(own.round), "fedrec.table": "recommendations 1"},
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            item_rows = _arrow_numbers(part["item_row"])
            columns = [
                users.take(_arrow_numbers(part["user_index"])),
                _arrow_numbers(part["rank"]),
                items.take(item_rows),
                titles.take(item_rows),
                _arrow_numbers(part["score"]),
                _arrow_numbers(np.full(len(part["rank"]), own.round, dtype=np.int64)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


# `pyarrow.array` checks for pandas objects, and imports pandas if it is installed: a tenth of the
# whole command.
def _arrow_numbers(values: NDArray[Any]) -> pyarrow.Array:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def _texts(values: Sequence[str]) -> pyarrow.Array:
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers).cast(pa.string())


def _write_csv(file: Any, parts: _Parts) -> None:
    own = parts.own
    ids, users = own.catalogue.item_ids, [no_formula(user) for user in own.user_ids]
    items = [(no_formula(item), no_formula(own.catalogue.title_of(item))) for item in ids]
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for part in parts:
        rows = zip(*(part[name].tolist() for name in part), strict=True)
        writer.writerows(
            (users[user], rank, *items[row], score, own.round) for user, rank, row, score in rows
        )
    # The caller closes the file.
    text.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The exported model and its path.

    Attributes:
        version: the round whose result the model is.
        was_hidden: whether the coordinator could never read it.
    """

    model: Path
    catalogue: Path
    version: RoundId
    was_hidden: bool


def export_model(
    settings: Settings,
    folder: Path,
    *,
    which: Which = "best",
    force: bool = False,
) -> ExportedModel:
    """Write the shared model and the catalogue for `Recommender.load`.

    It works while the client runs, and without the coordinator. Counts of items that fewer than
    `federation.minimum_item_users` hold become 0: the model does not need them.

    Args:
        settings: the client's settings.
        folder: the target folder: the one of the run's own record, or a new one.
        which: the model with the best validation rates, or the latest one.
        force: replace an existing model.

    Raises:
        StorageError: the state folder holds no model, or the files cannot be written.
        NoInformation: the model gives all items the same score.
        DataError: there is already a model, or the folder belongs to a different run.
        VersionMismatch: the state folder, or the run's folder, has a different format.
        SettingsError: the model's parameter set no longer exists.
    """
    held = read_held_model(settings, which)
    file = model_file_of(held)
    Recommender(file, held.catalogue).check_information()
    protection = protection_of(held.plan, len(held.catalogue))
    if (folder / USERS_NAME).exists():
        raise DataError(
            f"{folder} has {USERS_NAME}, so it is the folder of a simulation. Nothing was changed.",
            remedy="Choose another folder.",
        )
    if (folder / ENVIRONMENT_NAME).exists():
        check_run_folder(folder)
    resolved = folder / "resolved.toml"
    ours = held.plan.federation.name
    if resolved.exists() and (found := load_settings(resolved, environ={}).federation.name) != ours:
        raise DataError(
            f"{folder} is the folder of a run of {found!r}, but the model is of {ours!r}. Nothing "
            "was changed.",
            remedy="Choose the folder of this federation's run, or a new one.",
        )
    prepare_folder(folder, MODEL_NAME, force=force)
    _put_catalogue(held.catalogue, folder / CATALOGUE_NAME)
    file.save(folder / MODEL_NAME, private=protection.needs_reveal)
    return ExportedModel(
        model=folder / MODEL_NAME,
        catalogue=folder / CATALOGUE_NAME,
        version=held.version,
        was_hidden=protection.needs_reveal,
    )


def _put_catalogue(catalogue: Catalogue, path: Path) -> None:
    if not path.exists():
        catalogue.save(path)
    elif Catalogue.load(path).fingerprint() != catalogue.fingerprint():
        raise CatalogueMismatch(
            f"{path} is not the catalogue of the model. Nothing was changed.",
            remedy="Choose the folder of this federation's run, or a new one.",
        )
