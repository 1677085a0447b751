"""Top-K lists of models: their metrics at several K, by activity, and their export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import user_groups
from fedrec.data.splits import NO_ITEM, HeldOut, UserSplit
from fedrec.durable import write_whole
from fedrec.errors import DataError, RefusedError, StorageError, TrainingError
from fedrec.evaluation.lists import ListRates, activity_groups, auc, list_rates
from fedrec.showing import Tabular
from fedrec.training.evaluator import Evaluator
from fedrec.training.learner import Learner
from fedrec_lab.comparison.measurement import Blocks, scores_of
from fedrec_lab.reports.comparison_table import columns_of, parquet_of
from fedrec_lab.reports.result_row import aligned
from fedrec_lab.simulation.result import SimulationResult
from fedrec_lab.simulation.silos_tail import TAIL, scores_with_tail

_ALL, _LOCAL = "all", "local"
_GROUPS = 5
_FILE = "lists"
_CELLS_AT_ONCE = 1 << 24
_RATES = tuple(field.name for field in fields(ListRates) if field.name not in ("at", "users"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRow:
    """The metrics of a method's lists at one K, for a group of users.

    Attributes:
        group: "all", or the span of the group's training interactions.
        auc: the AUC, which has no K, or None if it is undefined.
    """

    method: str
    seed: int
    group: str
    auc: float | None
    rates: ListRates

    def to_record(self) -> dict[str, Any]:
        """Return the row with its metrics side by side."""
        named = {"method": self.method, "seed": self.seed, "group": self.group}
        return named | asdict(self.rates) | {"auc": self.auc}


_ROWS = TypeAdapter(tuple[ListRow, ...])


class ListMeasurement(Tabular):
    """Measures the lists of a comparison's methods, for `compare(lists=...)`.

    Args:
        held: the test items of the users that are trained. None for each user's test item.
        at: the values of K.
        folder: the folder in which rows are kept for resuming, or None.
        export: the folder for split and lists in the forms of RecBole and LensKit, or None.

    Attributes:
        rows: the metrics of all methods so far.

    Raises:
        DataError: a K is below 1.
        RefusedError: the folder's rows have other values of K.
        StorageError: the folder's rows are damaged.
    """

    def __init__(
        self,
        at: Sequence[int],
        *,
        held: HeldOut | None = None,
        folder: Path | None = None,
        export: Path | None = None,
    ) -> None:
        if not at or min(at) < 1:
            raise DataError(f"The values of K are {list(at)}.", remedy="Pass numbers from 1.")
        self._at, self._held, self._export = tuple(sorted(set(at))), held, export
        self._path = None if folder is None else folder / f"{_FILE}.json"
        self.rows: tuple[ListRow, ...] = ()
        if self._path is not None and self._path.exists():
            try:
                self.rows = _ROWS.validate_json(self._path.read_bytes())
            except ValidationError as error:
                raise StorageError(
                    f"{self._path} is damaged.", remedy="Restore the folder from a backup."
                ) from error
            earlier = sorted({row.rates.at for row in self.rows})
            if self.rows and earlier != list(self._at):
                raise RefusedError(
                    f"{self._path} has lists at {','.join(map(str, earlier))}, not at "
                    f"{','.join(map(str, self._at))}.",
                    remedy="Resume with the same --lists-at, or evaluate into a new folder.",
                )

    def take(self, result: SimulationResult) -> None:
        """Measure a training's chosen version, popularity, and what its clients reach alone.

        It must have the users of `held`. With `client.tail`, the version with it is measured, too.
        """
        settings, users = result.settings, result.users
        learner = Learner.of(settings.client, settings.plan, len(result.catalogue))
        methods = {
            settings.algorithm.name: scores_of(result),
            "popularity": _popular(users, len(result.catalogue)),
        }
        if result.tail is not None:
            methods[TAIL] = scores_with_tail(
                learner,
                result.best.shared,
                result.best.private,
                users,
                user_groups(users.user_ids, result.n_clients),
                settings.client.tail_minimum_users,
                result.tail,
            )
        for method, blocks in methods.items():
            self.add(method, settings.federation.seed, users, result.catalogue, blocks)
        if result.n_clients > 1:
            try:
                blocks = _alone(result, learner)
                self.add(_LOCAL, settings.federation.seed, users, result.catalogue, blocks)
            except TrainingError:
                # As in the table of rates: training on few users can diverge.
                pass
        if self._export is not None:
            held = self._held or _single(users)
            export_split(self._export, settings.federation.name, users, held, result.catalogue)

    def add(
        self, method: str, seed: int, users: UserSplit, catalogue: Catalogue, blocks: Blocks
    ) -> None:
        """Measure a method's scores. Earlier rows of the same method and seed are replaced.

        Raises:
            TrainingError: a client's training that yields them diverges.
        """
        held = self._held or _single(users)
        ranked = _ranked(blocks, users, held, max(self._at))
        found = tuple(_rows(method, seed, users, len(catalogue), held, self._at, ranked))
        if self._export is not None:
            frame = _listed(ranked[0], users, catalogue)
            _write_frame(self._export / "lenskit" / f"{method}-seed-{seed}.parquet", frame)
        kept = (row for row in self.rows if (row.method, row.seed) != (method, seed))
        self.rows = (*kept, *found)
        if self._path is not None:
            write_whole(self._path, _ROWS.dump_json(self.rows, indent=1), private=False)
            kinds = dict.fromkeys((*_RATES, "auc"), "double") | {"method": "string"}
            kinds |= {"group": "string"} | dict.fromkeys(("seed", "at", "users"), "int64")
            content = parquet_of(kinds, map(ListRow.to_record, self.rows))
            write_whole(self._path.with_suffix(".parquet"), content, private=False)

    def columns(self) -> Mapping[str, list[Any]]:
        """Return the metrics, one row for each method, seed, group and K."""
        return columns_of(map(ListRow.to_record, self.rows))

    def __repr__(self) -> str:
        return f"ListMeasurement({len(self.rows)} rows, K = {', '.join(map(str, self._at))})"

    def to_text(self) -> str:
        """Return the rows as aligned text."""
        titles = ["method", "seed", "training items", "users", "K", *_RATES, "auc"]
        lines = [
            [row.method, str(row.seed), row.group, str(row.rates.users), str(row.rates.at)]
            + [f"{getattr(row.rates, name):.4f}" for name in _RATES]
            + ["-" if row.auc is None else f"{row.auc:.4f}"]
            for row in self.rows
        ]
        return "\n".join(aligned([titles, *lines], left=(0,)))


def _single(users: UserSplit) -> HeldOut:
    has = users.test_items != NO_ITEM
    starts = np.concatenate([[0], np.cumsum(has)]).astype(np.int64)
    return HeldOut(indptr=starts, items=users.test_items[has])


def _popular(users: UserSplit, n_items: int) -> Blocks:
    """Yield the number of training users of each item as the scores of every user."""
    holders = users.item_counts(n_items)
    popular = torch.from_numpy(holders.astype(np.float32))
    all_users = np.arange(len(users), dtype=np.int64)
    at_once = max(1, _CELLS_AT_ONCE // n_items)
    for rows in np.split(all_users, range(at_once, len(users), at_once)):
        yield rows, popular.expand(len(rows), -1)


def _alone(result: SimulationResult, learner: Learner) -> Blocks:
    """Yield scores of models that each client trains on its own users, one client at a time."""
    start, holders = learner.server.initial_shared(), result.best.shared.holders
    if holders is not None:
        start = start.with_holders(holders)
    for group in user_groups(result.users.user_ids, result.n_clients):
        own, half = result.users.select(group), learner.local
        found = Evaluator(half).train_alone(start, own, half.initial_private(own))
        for rows, scores in half.score_blocks(found[0], own, found[1]):
            yield group[rows], scores


def _rows(
    method: str,
    seed: int,
    users: UserSplit,
    n_items: int,
    held: HeldOut,
    at: tuple[int, ...],
    ranked: tuple[NDArray[np.int64], NDArray[np.float64]],
) -> Iterator[ListRow]:
    lists, above = ranked
    holders = users.item_counts(n_items)
    activity = np.diff(users.train_indptr)
    has_validation = users.validation_items != NO_ITEM
    n_others = n_items - activity - has_validation - np.diff(held.indptr)
    measured = np.diff(held.indptr) > 0
    groups = [(_ALL, measured)]
    if measured.any():
        for span, inside in activity_groups(activity[measured], _GROUPS):
            chosen = np.zeros_like(measured)
            chosen[measured] = inside
            groups.append((span, chosen))
    for span, inside in groups:
        own = held.select(inside)
        area = auc(above[inside[held.owner]], n_others[inside], own)
        for number in at:
            rates = list_rates(lists[inside], own, number, holders, len(users))
            if rates is not None:
                yield ListRow(method=method, seed=seed, group=span, auc=area, rates=rates)


def _ranked(
    scores: Blocks,
    users: UserSplit,
    held: HeldOut,
    most: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return lists, and for each test item how many other candidates are above it.

    Candidates are all items but a user's training and validation items. Equal scores are in the
    catalogue's order, and count half.
    """
    lists = np.full((len(users), most), NO_ITEM, dtype=np.int64)
    above = np.zeros(len(held.items))
    for rows, found in scores:
        part, block = users.select(rows), found.to("cpu", torch.float64, copy=True)
        known = (torch.from_numpy(part.train_owner), torch.from_numpy(np.asarray(part.train_items)))
        block[known] = torch.nan
        has = np.nonzero(part.validation_items != NO_ITEM)[0]
        block[torch.from_numpy(has), torch.from_numpy(part.validation_items[has])] = torch.nan
        ordered = torch.sort(block.nan_to_num(-torch.inf, posinf=torch.inf, neginf=-torch.inf),
                             dim=1, descending=True, stable=True)  # fmt: skip
        best = ordered.indices[:, :most].numpy().copy()
        best[ordered.values[:, :most].numpy() == -np.inf] = NO_ITEM
        lists[rows, : best.shape[1]] = best
        for place, user in enumerate(rows.tolist()):
            first, last = held.indptr[user : user + 2]
            wanted = held.items[first:last]
            mine = block[place].numpy().copy()
            own = mine[wanted]
            mine[wanted] = np.nan
            others = np.sort(mine[~np.isnan(mine)])
            low = np.searchsorted(others, own, side="left")
            high = np.searchsorted(others, own, side="right")
            above[first:last] = len(others) - high + 0.5 * (high - low)
    return lists, above


def _pairs(
    users: UserSplit, owner: NDArray[np.int64], items: NDArray[np.int64], catalogue: Catalogue
) -> dict[str, list[Any]]:
    kept = items != NO_ITEM
    return {
        "user_id": [str(users.user_ids[place]) for place in owner[kept].tolist()],
        "item_id": [str(catalogue.item_ids[item]) for item in items[kept].tolist()],
    }


def _listed(
    lists: NDArray[np.int64], users: UserSplit, catalogue: Catalogue
) -> dict[str, list[Any]]:
    owner = np.repeat(np.arange(len(users)), lists.shape[1])
    ranks = np.tile(np.arange(1, lists.shape[1] + 1), len(users))[lists.ravel() != NO_ITEM]
    return _pairs(users, owner, lists.ravel(), catalogue) | {"rank": ranks.tolist()}


def export_split(
    folder: Path, name: str, users: UserSplit, held: HeldOut, catalogue: Catalogue
) -> None:
    """Write a split as RecBole's atomic files and as frames of LensKit.

    RecBole reads `recbole/<name>/` with `benchmark_filename: [train, valid, test]`. LensKit reads
    the Parquet files of `lenskit/`, by `user_id` and `item_id`. Times are not in them.
    """
    all_users = np.arange(len(users), dtype=np.int64)
    for part, owner, items in (
        ("train", users.train_owner, np.asarray(users.train_items)),
        ("valid", all_users, users.validation_items),
        ("test", held.owner, held.items),
    ):
        columns = _pairs(users, owner, items, catalogue)
        _write_frame(folder / "lenskit" / f"{part}.parquet", columns)
        lines = [
            "user_id:token\titem_id:token",
            *map("\t".join, zip(*columns.values(), strict=True)),
        ]
        path = folder / "recbole" / name / f"{name}.{part}.inter"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, ("\n".join(lines) + "\n").encode(), private=True)


def _write_frame(path: Path, columns: Mapping[str, list[Any]]) -> None:
    kinds = {name: "int64" if name == "rank" else "string" for name in columns}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, parquet_of(kinds, rows), private=True)
