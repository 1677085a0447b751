"""The findings of `fedrec check` about settings: prices, warnings, and what would be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from fedrec.algorithms.declarations import NoiseProposal
from fedrec.cli.data_options import catalogue_size, echo_note
from fedrec.cli.flags import read_cells
from fedrec.cli.own_floor import HeldRows
from fedrec.cli.pricing import (
    price_rows,
    price_tables,
    priced,
    ray_price,
    ray_rows,
    ray_warnings,
    sizing_content,
    sizing_table,
    tables_price,
    tables_rows,
    tables_warnings,
)
from fedrec.cli.terminal import TextTable, count_of
from fedrec.data import Catalogue, UserSplit
from fedrec.data.source import check_one_party, read_users
from fedrec.errors import FedrecError
from fedrec.extras import require
from fedrec.formats import check_runs_folder
from fedrec.model.tables import room_in
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.cautions import protocol_cautions
from fedrec.plan.exposure import check_exposure, check_own_floor
from fedrec.plan.layout import protection_of
from fedrec.plan.price import (
    ParameterSet,
    RunFacts,
    TableFacts,
    parameter_sets,
    price,
)
from fedrec.plan.privacy import noise_proposal, privacy_price, privacy_warnings
from fedrec.plan.protections import Price
from fedrec.plan.settings_warnings import warnings_for
from fedrec.plan.sizing import SizeFacts, sizes
from fedrec.plan.travelling_rows import CellRows, cell_rows
from fedrec.protection.rehearsal import check_summands
from fedrec.section import as_toml
from fedrec.settings.explain import all_settings
from fedrec.settings.schema import Settings
from fedrec.settings.validation import LoadedSettings
from fedrec.training.starting import check_start


class CheckedSettings:
    """Settings with their price and their data, as far as it is on this machine.

    Args:
        n_items: size of the catalogue, or 0 if a file gives it.
        n_clients: clients in a round, or 0 for the plan's number and the data of one client.
        cells: the number of their cells or a roster's path, or empty for no cells.
        accept_exposure: whether the exposure of users' data is accepted.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        n_items: int,
        n_clients: int,
        cells: str,
        accept_exposure: bool,
    ) -> None:
        self._loaded = loaded
        self._settings, self._plan = loaded.settings, loaded.settings.plan
        found = read_cells(self._settings, cells, n_clients)
        self._n_clients, self._cells, self._unused_cells = found
        self._accepted = accept_exposure
        self._users: UserSplit | None = None
        self._catalogue: Catalogue | None = None
        here = _read_if_here(self._settings)
        if here is not None:
            self._users, self._catalogue = here
        self._n_users = 0 if self._users is None else len(self._users)
        self._n_items, self._source = 0, ""
        self._sets: tuple[ParameterSet, ...] = ()
        self._held: HeldRows | None = None
        self._rows_of_cells: CellRows | None = None
        self._n_active: int | None = None
        self._price: Price[RunFacts] | None = None
        if n_items or self._settings.data.catalogue or self._settings.data.path:
            self._find_price(n_items)

    def _find_price(self, n_items: int) -> None:
        plan, users, client = self._plan, self._users, self._settings.client
        n_items, self._source = catalogue_size(self._settings, n_items, self._catalogue)
        self._n_items, self._sets = n_items, parameter_sets(plan, n_items)
        if users is not None:
            n_clients = 1 if _is_one_party(self._settings) else self._n_clients
            self._held = HeldRows.of(users, n_items, n_clients)
            least = plan.federation.minimum_item_users
            self._n_active = self._held.trained(client.minimum_own_item_users, least)
            if self._cells:
                self._rows_of_cells = cell_rows(
                    plan, users, n_items, n_clients=self._n_clients or 1, cells=self._cells
                )
                self._n_active = self._rows_of_cells.n_trained
        self._price = price(
            plan, n_items=n_items, n_clients=self._n_clients, n_active=self._n_active
        )

    @cached_property
    def _own_users(self) -> int:
        """The number of users of one client."""
        if self._price is None:
            return 0
        in_data = self._n_users and (not self._n_clients or _is_one_party(self._settings))
        shared_by = 1 if in_data else self._price.facts["n_clients"]
        return -(-(self._n_users or self._plan.federation.maximum_users) // shared_by)

    @cached_property
    def _sizes(self) -> tuple[Price[SizeFacts], ...] | None:
        """The needs of each party."""
        if self._price is None:
            return None
        memory_mib = self._settings.client.memory_mib
        return sizes(self._plan, self._price, own_users=self._own_users, memory_mib=memory_mib)

    @cached_property
    def _tables(self) -> Price[TableFacts] | None:
        """The size of the users' private tables on this machine."""
        if self._price is None or not self._n_users:
            return None
        return tables_price(self._settings, self._n_users, self._n_items)

    @cached_property
    def _ray_seconds(self) -> float | None:
        return ray_price(self._settings, self._n_users, self._n_active or self._n_items)

    @cached_property
    def _privacy(self) -> Price[Mapping[str, object]] | None:
        return privacy_price(self._plan, self._n_items)

    @cached_property
    def _proposal(self) -> NoiseProposal | None:
        n_expected = 0 if _is_one_party(self._settings) else self._n_users
        expected = n_expected or self._plan.privacy.expected_users
        return noise_proposal(self._plan, self._n_items, expected)

    @cached_property
    def _shown_floor(self) -> HeldRows | None:
        """The rows that `client.minimum_own_item_users` affects, or None if it has no effect.

        Noise already covers a single user's row, and a client that sends indices has one user.
        """
        plan = self._plan
        tells = plan.privacy.mechanism == "none" and plan.update.indices == "hidden"
        return self._held if tells else None

    @cached_property
    def refusals(self) -> list[FedrecError]:
        """The errors that `fedrec simulate` would raise, in its order."""
        plan, n_clients = self._plan, self._n_clients
        found = list(
            _refusals(self._settings, self._users, self._catalogue, n_clients, self._accepted)
        )
        if n_clients and self._price is not None:
            protection = protection_of(plan, self._n_items)
            found += _refused(lambda: check_summands(protection, n_clients))
        return found

    @cached_property
    def _warnings(self) -> list[str]:
        return list(self._warn())

    def _warn(self) -> Iterator[str]:
        """Yield what to know before a run of these settings."""
        plan, users, data = self._plan, self._users, self._settings.data
        n_users, n_clients = self._n_users, self._n_clients
        yield from warnings_for(plan, n_users, self._n_items, n_clients, self._n_active or 0)
        yield from [self._unused_cells] if self._unused_cells else []
        if self._tables is not None:
            yield from tables_warnings(self._tables)
        yield from ray_warnings(self._ray_seconds)
        yield from privacy_warnings(plan, n_users, n_clients)
        if self._n_active == 0 and plan.privacy.mechanism == "none" and not self.refusals:
            least = plan.federation.minimum_item_users
            yield (
                f"No item of data.path is held by {least} users (federation.minimum_item_users)"
                + " outside the largest cells (federation.corrupt_cells)" * bool(self._cells)
                + ": with this data alone, no rows would be trained."
            )
        if users is not None and self._catalogue is not None:
            measured = (plan.evaluation.protocol,)
            cautions = protocol_cautions(plan, users, len(self._catalogue), measured)
            yield from (f"{protocol}: {text}" for protocol, text in cautions.items())
        if data.path is not None and users is None:
            yield (
                f"data.path = {data.path!r} isn't on this machine, so fedrec didn't check whether "
                "its users fit into federation.maximum_users."
            )

    def sizing_text(self) -> Iterator[str | TextTable]:
        """Yield what each party needs."""
        if self._price is None or self._sizes is None:
            yield from _NO_PRICE
        else:
            yield from sizing_table(self._sizes, self._own_users, self._price)

    def text(self) -> Iterator[str | TextTable]:
        """Yield the resolved settings, their price, warnings and further refusals."""
        yield _resolved(self._loaded)
        yield from _NO_PRICE if self._price is None else self._price_text(self._price)
        if self._privacy is None:
            yield "\nNo differential privacy: sums are exact, so there is no epsilon."
        else:
            yield TextTable(rows=self._privacy.rows, title="\nHow well sums hide a single user")
        if self._proposal is not None:
            lines = [(key, as_toml(value)) for key, value in self._proposal.settings.items()]
            title = f"\nProposed for this epsilon. {self._proposal.reason}"
            yield TextTable(rows=lines, title=title)
        if self._rows_of_cells is not None:
            yield f"\n{self._rows_of_cells.sentence(self._plan)}"
        yield f"\nPlan {plan_fingerprint(self._plan)}"
        yield from (f"warning: {warning}" for warning in self._warnings)
        yield from (f"refused, too: {refusal}" for refusal in self.refusals[1:])

    def _price_text(self, found: Price[RunFacts]) -> Iterator[str | TextTable]:
        client, rows = self._settings.client, list(price_rows(found, self._source))
        if self._users is not None:
            rows.insert(1, ("users", _room(self._n_users, self._plan.federation.maximum_users)))
        if self._tables is not None:
            rows += tables_rows(self._tables)
        rows += ray_rows(self._ray_seconds, client.device)
        if self._shown_floor is not None:
            rows += self._shown_floor.table(client.minimum_own_item_users)
        yield from price_tables(found, rows, self._sets)

    def content(self) -> dict[str, object]:
        """Return the findings as JSON."""
        floor, ray, loaded = self._shown_floor, self._ray_seconds, self._loaded
        return {
            "plan_fingerprint": plan_fingerprint(self._plan),
            "settings": self._settings.model_dump(),
            "sources": {key: asdict(origin) for key, origin in loaded.origins.items()},
            "users": None if self._users is None else self._n_users,
            "price": None if self._price is None else priced(self._price),
            "own_floor": floor.content() if floor else None,
            "private": None if self._tables is None else self._tables.facts,
            "ray": None if ray is None else {"measuring_seconds": ray},
            "sizing": None if self._sizes is None else sizing_content(self._sizes),
            "sets": [asdict(entry) for entry in self._sets],
            "cells": None if self._rows_of_cells is None else asdict(self._rows_of_cells),
            "privacy": None if self._privacy is None else self._privacy.facts,
            "proposal": None if self._proposal is None else asdict(self._proposal),
            "warnings": self._warnings,
            "refusals": [{"error": each.code, "message": str(each)} for each in self.refusals],
        }


_NO_PRICE = (
    "\nNo price: the number of items is unknown. Set data.catalogue or data.path,",
    "or give --items N.",
)


def _read_if_here(settings: Settings) -> tuple[UserSplit, Catalogue] | None:
    """Return the users and items that the settings name, or None if their files are elsewhere."""
    data = settings.data
    # Coordinator and clients share one settings file, so its paths may be on other machines.
    if data.path is None or (data.catalogue is not None and not Path(data.path).exists()):
        return None
    return read_users(data, reader="the price", tell=echo_note)


def _is_one_party(settings: Settings) -> bool:
    client = settings.client
    return client.invitation is not None or client.certificate is not None


def _refusals(
    settings: Settings,
    users: UserSplit | None,
    catalogue: Catalogue | None,
    n_clients: int,
    accepted: bool,
) -> Iterator[FedrecError]:
    """Yield the errors that `fedrec simulate` would raise, in its order, from its own checks."""
    plan, client = settings.plan, settings.client
    runs = Path(settings.output.runs)
    checks: list[Callable[[], object]] = [lambda: check_exposure(plan, accepted=accepted)]
    if _is_one_party(settings):
        checks.append(lambda: check_one_party(settings.data))
    else:
        checks.append(lambda: check_runs_folder(runs))
    if users is not None:
        # Users are dealt out in turn, so each client with users has at least this many.
        fewest = len(users) // (1 if _is_one_party(settings) else n_clients or 1)
        checks.append(lambda: check_own_floor(client.minimum_own_item_users, max(1, fewest)))
    if not _is_one_party(settings) and users is not None and catalogue is not None:
        n_items, n_users = len(catalogue), len(users)
        widths = algorithm_of(plan, n_items).derived.private_widths
        room = room_in(runs, client.memory_mib << 20)
        checks.append(lambda: check_start(plan, users, n_items))
        checks.append(lambda: room.make_ready(n_users, widths))
    checks.append(lambda: _check_device(client.device))
    if client.engine == "ray":
        checks.append(lambda: require("ray"))
    for check_one in checks:
        yield from _refused(check_one)


def _refused(check_one: Callable[[], object]) -> Iterator[FedrecError]:
    """Yield the error if a check fails."""
    try:
        check_one()
    except FedrecError as error:
        yield error


def _check_device(device: str) -> None:
    """Refuse a device that this machine doesn't have. Only torch can list them."""
    if device in ("auto", "cpu"):
        return
    from fedrec.training.device import choose_device

    choose_device(device)


def _room(n_users: int, maximum_users: int) -> str:
    if n_users > maximum_users:
        return f"{n_users} in data.path, which is above federation.maximum_users = {maximum_users}"
    alike = count_of(maximum_users // max(1, n_users), "such client")
    return f"{n_users} in data.path. federation.maximum_users = {maximum_users} fits {alike}"


def _resolved(loaded: LoadedSettings) -> TextTable:
    rows = []
    settings = loaded.settings
    for key, setting in all_settings(settings.algorithm.name, settings.protection.name).items():
        value = getattr(getattr(settings, setting.section), setting.name)
        origin = loaded.origins[key]
        if origin.kind != "default" or setting.in_plan:
            rows.append((key, as_toml(value), str(origin)))
    title = f"{loaded.path} resolves to"
    return TextTable(rows=rows, title=title, headers=("setting", "value", "from"))
