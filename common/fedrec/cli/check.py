"""`fedrec check`: resolve, explain and price settings before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import AcceptExposure, CellsOf, SetValues, read_cells, values_of
from fedrec.cli.terminal import Result, TextTable, count_of

if TYPE_CHECKING:
    from fedrec.data import Catalogue, UserSplit
    from fedrec.errors import FedrecError
    from fedrec.plan.price import ParameterSet
    from fedrec.settings.schema import Settings
    from fedrec.settings.validation import LoadedSettings


EPILOG = (
    "Examples:\n"
    "  fedrec check run.toml\n"
    "  fedrec check run.toml --items 50000 --clients 20 --json\n"
    "  fedrec check run.toml --sizing --clients 20\n"
    "  fedrec check --explain\n"
    "  fedrec check --upgrade kits\n"
    "  fedrec check --explain rounds.total\n"
    "  FEDREC_ROUNDS__TOTAL=10 fedrec check run.toml --set update.rank=8"
)


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SETTINGS",
            help="The settings file, a key with --explain, or a folder with --upgrade.",
        ),
    ] = "",
    items: Annotated[
        int, typer.Option(min=0, help="Size of the catalogue, if no file gives it.")
    ] = 0,
    clients: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of clients per round for the cost estimate, which divides the data among "
            "them. If 0, uses the plan's number and assumes that the data is one client's.",
        ),
    ] = 0,
    cells: CellsOf = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain a setting, a section or all settings.")
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Report what this release would do with a folder of an earlier one: a kit, a "
            "state, keys or runs.",
        ),
    ] = False,
    sizing: Annotated[
        bool,
        typer.Option(
            "--sizing",
            help="Show the memory, disk, bytes and processor time that each party needs, and "
            "nothing else.",
        ),
    ] = False,
    accept_exposure: AcceptExposure = False,
    values: SetValues = None,
) -> Result:
    """Check settings, show where each value comes from, and price the run.

    The command fails with the same error as `fedrec simulate` if `simulate` would refuse the
    settings. With --clients, it also fails if the protection can't add up that many updates, as
    `simulate --protect` does. A client's own settings (client.invitation or client.certificate)
    cover one party's data only. Conditions on all parties' data are then warnings.

    A flag overrides the environment (FEDREC_SECTION__FIELD), which overrides the file, which
    overrides the default. The data at data.path is read if it is on this machine. Nothing is
    started or written.
    """
    if explain:
        return _explain("" if Path(target).is_file() else target)
    if upgrade:
        from fedrec.cli.upgrading import upgraded

        return upgraded(Path(target))
    from fedrec.cli.data_options import catalogue_size
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
    from fedrec.errors import SettingsError
    from fedrec.plan.agreement import plan_fingerprint
    from fedrec.plan.cautions import protocol_cautions
    from fedrec.plan.layout import protection_of
    from fedrec.plan.price import parameter_sets, price
    from fedrec.plan.privacy import noise_proposal, privacy_price, privacy_warnings
    from fedrec.plan.settings_warnings import warnings_for
    from fedrec.plan.sizing import sizes
    from fedrec.plan.travelling_rows import cell_rows
    from fedrec.protection.rehearsal import check_summands
    from fedrec.section import as_toml
    from fedrec.settings.validation import load_with_sources

    if not target:
        raise SettingsError(
            "No settings file was given.",
            remedy="Run `fedrec check run.toml`. `fedrec init` writes such a file.",
        )
    loaded = load_with_sources(Path(target), values_of(values))
    plan = loaded.settings.plan
    data, found, source, n_items, active = loaded.settings.data, None, "", 0, None
    clients, by_cells, unused = read_cells(loaded.settings, cells, clients)
    rows_of_cells = None
    users, catalogue = _read_if_here(loaded.settings) or (None, None)
    n_users = 0 if users is None else len(users)
    sets: tuple[ParameterSet, ...] = ()
    floor, least = loaded.settings.client.minimum_own_item_users, plan.federation.minimum_item_users
    held = None
    # Noise already covers a single user's row, and a client that sends indices has one user.
    tells_floor = plan.privacy.mechanism == "none" and plan.update.indices == "hidden"
    if items or data.catalogue or data.path:
        n_items, source = catalogue_size(loaded.settings, items, catalogue)
        sets = parameter_sets(plan, n_items)
        if users is not None and catalogue is not None:
            held = HeldRows.of(users, n_items, 1 if _is_one_party(loaded.settings) else clients)
            active = held.trained(floor, least)
            if by_cells:
                rows_of_cells = cell_rows(
                    plan, users, n_items, n_clients=clients or 1, cells=by_cells
                )
                active = rows_of_cells.n_trained
        found = price(plan, n_items=n_items, n_clients=clients, n_active=active)
    own_users, needed = 0, None
    if found is not None:
        in_data = n_users and (not clients or _is_one_party(loaded.settings))
        shared_by = 1 if in_data else found.facts["n_clients"]
        own_users = -(-(n_users or plan.federation.maximum_users) // shared_by)
        memory_mib = loaded.settings.client.memory_mib
        needed = sizes(plan, found, own_users=own_users, memory_mib=memory_mib)
    warnings = warnings_for(plan, n_users, n_items, clients, active or 0)
    warnings += [unused] if unused else []
    private = tables_price(loaded.settings, n_users, n_items) if found and n_users else None
    if private is not None:
        warnings += tables_warnings(private)
    ray_seconds = ray_price(loaded.settings, n_users, active or n_items)
    warnings += ray_warnings(ray_seconds)
    privacy = privacy_price(plan, n_items)
    warnings += privacy_warnings(plan, n_users, clients)
    n_expected = n_users if users is not None and not _is_one_party(loaded.settings) else 0
    proposal = noise_proposal(plan, n_items, n_expected or plan.privacy.expected_users)
    refusals = list(_refusals(loaded.settings, users, catalogue, clients, accept_exposure))
    if clients and found is not None:
        refusals += _refused(lambda: check_summands(protection_of(plan, n_items), clients))
    if active == 0 and plan.privacy.mechanism == "none" and not refusals:
        warnings.append(
            f"No item of data.path is held by {least} users (federation.minimum_item_users)"
            + " outside the largest cells (federation.corrupt_cells)" * bool(by_cells)
            + ": with this data alone, no rows would be trained."
        )
    if users is not None and catalogue is not None:
        measured = (plan.evaluation.protocol,)
        cautions = protocol_cautions(plan, users, len(catalogue), measured)
        warnings += [f"{protocol}: {text}" for protocol, text in cautions.items()]
    if data.path is not None and users is None:
        warnings.append(
            f"data.path = {data.path!r} isn't on this machine, so fedrec didn't check whether its "
            "users fit into federation.maximum_users."
        )

    def text() -> Iterator[str | TextTable]:
        if not sizing:
            yield _resolved(loaded)
        if found is None:
            yield "\nNo price: the number of items is unknown. Set data.catalogue or data.path,"
            yield "or give --items N."
        elif sizing and needed is not None:
            yield from sizing_table(needed, own_users, found)
        else:
            rows = list(price_rows(found, source))
            if users is not None:
                rows.insert(1, ("users", _room(n_users, plan.federation.maximum_users)))
            if private is not None:
                rows += tables_rows(private)
            rows += ray_rows(ray_seconds, loaded.settings.client.device)
            if held is not None and tells_floor:
                rows += held.table(floor)
            yield from price_tables(found, rows, sets)
        if sizing:
            return
        if privacy is None:
            yield "\nNo differential privacy: sums are exact, so there is no epsilon."
        else:
            yield TextTable(rows=privacy.rows, title="\nHow well sums hide a single user")
        if proposal is not None:
            lines = [(key, as_toml(value)) for key, value in proposal.settings.items()]
            yield TextTable(rows=lines, title=f"\nProposed for this epsilon. {proposal.reason}")
        if rows_of_cells is not None:
            yield f"\n{rows_of_cells.sentence(plan)}"
        yield f"\nPlan {plan_fingerprint(plan)}"
        yield from (f"warning: {warning}" for warning in warnings)
        yield from (f"refused, too: {refusal}" for refusal in refusals[1:])

    return Result(
        content={
            "path": target,
            "plan_fingerprint": plan_fingerprint(plan),
            "settings": loaded.settings.model_dump(),
            "sources": {key: asdict(origin) for key, origin in loaded.origins.items()},
            "users": None if users is None else n_users,
            "price": None if found is None else priced(found),
            "own_floor": held.content() if held and tells_floor else None,
            "private": None if private is None else private.facts,
            "ray": None if ray_seconds is None else {"measuring_seconds": ray_seconds},
            "sizing": None if needed is None else sizing_content(needed),
            "sets": [asdict(entry) for entry in sets],
            "cells": None if rows_of_cells is None else asdict(rows_of_cells),
            "privacy": None if privacy is None else privacy.facts,
            "proposal": None if proposal is None else asdict(proposal),
            "warnings": warnings,
            "refusals": [{"error": each.code, "message": str(each)} for each in refusals],
        },
        text=text(),
        failure=refusals[0] if refusals else None,
    )


def _read_if_here(settings: Settings) -> tuple[UserSplit, Catalogue] | None:
    """Return the users and items that the settings name, or None if their files are elsewhere."""
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users

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
    from fedrec.data.source import check_one_party
    from fedrec.extras import require
    from fedrec.formats import check_runs_folder
    from fedrec.model.tables import room_in
    from fedrec.plan.algorithm import algorithm_of
    from fedrec.plan.exposure import check_exposure, check_own_floor
    from fedrec.training.starting import check_start

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
    from fedrec.errors import FedrecError

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
    from fedrec.section import as_toml
    from fedrec.settings.explain import all_settings

    rows = []
    settings = loaded.settings
    for key, setting in all_settings(settings.algorithm.name, settings.protection.name).items():
        value = getattr(getattr(settings, setting.section), setting.name)
        origin = loaded.origins[key]
        if origin.kind != "default" or setting.in_plan:
            rows.append((key, as_toml(value), str(origin)))
    title = f"{loaded.path} resolves to"
    return TextTable(rows=rows, title=title, headers=("setting", "value", "from"))


def _explain(key: str) -> Result:
    from fedrec.section import Section
    from fedrec.settings.explain import explain

    found = explain(key)
    settings, lines = [], []
    for setting in found:
        default = setting.default
        settings.append(
            {
                "key": setting.key,
                "default": default.model_dump(mode="json")
                if isinstance(default, Section)
                else setting.default_in_words or default,
                "allowed": setting.allowed,
                "meaning": setting.sentence,
                "environment": setting.environment,
                "in_plan": setting.in_plan,
                "algorithm": setting.owner if setting.section == "algorithm" else "",
                "protection": setting.owner if setting.section == "protection" else "",
            }
        )
        scope = "plan" if setting.in_plan else "local"
        scope += f", {setting.owner}" if setting.owner else ""
        lines += [
            f"{setting.key} ({scope})",
            f"  {setting.sentence}",
            f"  {setting.allowed}; default {setting.shown_default}",
            f"  environment {setting.environment}",
        ]
    return Result(content={"settings": settings}, text=lines)
