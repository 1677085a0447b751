"""Top-K lists of trained models: their metrics at several K, by activity, and their export."""

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
from fedrec.data.splits import NO_ITEM, HeldOut, UserSplit
from fedrec.durable import write_whole
from fedrec.errors import DataError, RefusedError, StorageError
from fedrec.evaluation.lists import ListRates, activity_groups, auc, list_rates
from fedrec.showing import Tabular
from fedrec.training.learner import Learner
from fedrec_lab.reports.comparison_table import columns_of, parquet_of
from fedrec_lab.reports.result_row import aligned
from fedrec_lab.simulation.result import SimulationResult

_ALL = "all"
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
    """Measures the lists of every training of a comparison, for `compare(trained=...)`.

    Args:
        held: the test items of the users that are trained. None for each user's test item.
        at: the values of K.
        folder: the folder in which rows are kept for resuming, or None.
        export: the folder for split and lists in the forms of RecBole and LensKit, or None.

    Attributes:
        rows: the metrics of the model and of popularity so far.

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
        """Measure the chosen version of a training. It must have the users of `held`."""
        held = self._held or _single(result.users)
        found = tuple(_rows(result, held, self._at, self._export))
        again = {(row.method, row.seed) for row in found}
        kept = (row for row in self.rows if (row.method, row.seed) not in again)
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


def _rows(
    result: SimulationResult, held: HeldOut, at: tuple[int, ...], export: Path | None
) -> Iterator[ListRow]:
    users, shared = result.users, result.best.shared
    n_items, seed = len(result.catalogue), result.settings.federation.seed
    learner = Learner.of(result.settings.client, result.settings.plan, n_items)
    scores = learner.local.score_blocks(shared, users, result.best.private)
    holders = np.bincount(users.train_items, minlength=n_items)
    all_users = np.arange(len(users), dtype=np.int64)
    at_once = max(1, _CELLS_AT_ONCE // n_items)
    popular = torch.from_numpy(holders.astype(np.float32))
    methods = {result.settings.algorithm.name: _ranked(scores, users, held, max(at))}
    methods["popularity"] = _ranked(
        (
            (rows, popular.expand(len(rows), -1))
            for rows in np.split(all_users, range(at_once, len(users), at_once))
        ),
        users,
        held,
        max(at),
    )
    has_validation = users.validation_items != NO_ITEM
    activity = np.diff(users.train_indptr)
    n_others = n_items - activity - has_validation - np.diff(held.indptr)
    measured = np.diff(held.indptr) > 0
    groups = [(_ALL, measured)]
    if measured.any():
        for span, inside in activity_groups(activity[measured], _GROUPS):
            chosen = np.zeros_like(measured)
            chosen[measured] = inside
            groups.append((span, chosen))
    for method, (lists, above) in methods.items():
        for span, inside in groups:
            own = held.select(inside)
            area = auc(above[inside[held.owner]], n_others[inside], own)
            for number in at:
                rates = list_rates(lists[inside], own, number, holders, len(users))
                if rates is not None:
                    yield ListRow(method=method, seed=seed, group=span, auc=area, rates=rates)
        if export is not None:
            frame = _listed(lists, users, result.catalogue)
            _write_frame(export / "lenskit" / f"{method}-seed-{seed}.parquet", frame)
    if export is not None:
        export_split(export, result.settings.federation.name, users, held, result.catalogue)


def _ranked(
    scores: Iterator[tuple[NDArray[np.int64], torch.Tensor]],
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
        known = (torch.from_numpy(part.train_owner), torch.from_numpy(part.train_items))
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
        ("train", users.train_owner, users.train_items),
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
