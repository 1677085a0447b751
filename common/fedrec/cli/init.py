"""`fedrec init`: write a first settings file."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.algorithms import ALGORITHMS, STARTING_ALGORITHM
from fedrec.cli.data_options import data_settings, echo_note
from fedrec.cli.flags import ACCEPT_EXPOSURE, AcceptExposure
from fedrec.cli.terminal import Result, count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedrec.algorithms.proposal import DataShape, Proposal
    from fedrec.settings.starter import Starter


_START = STARTING_ALGORITHM.name
_OTHERS = [
    name
    for name, kind in ALGORITHMS.items()
    if kind.about.advice.starter is not None and name != _START
]

EPILOG = "\n".join(
    [
        "Examples:",
        "  fedrec init",
        "  fedrec init --data data/interactions.csv --clients 3",
        "  fedrec init --auto data/interactions.csv --clients 3",
        "  fedrec init --clients north,south,west --address fedrec.example:7447",
        *(f"  fedrec init --algorithm {name} --clients 3" for name in _OTHERS),
        "  fedrec init plain.toml --protection none --name trial",
    ]
)

CATALOGUE_FILE = "catalogue.csv"


def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write.")] = Path(
        "federation.toml"
    ),
    algorithm: Annotated[
        str,
        typer.Option(
            help=" ".join(
                f"{name}: {ALGORITHMS[name].about.advice.summary}." for name in (_START, *_OTHERS)
            )
        ),
    ] = _START,
    protection: Annotated[
        str, typer.Option(help="The protection of updates: bfv, ckks, paillier, masks or none.")
    ] = "bfv",
    data: Annotated[
        Path | None,
        typer.Option(help="Interactions file. Sets data.path and federation.maximum_users."),
    ] = None,
    auto: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Like --data, and propose algorithm and settings for the data.",
        ),
    ] = None,
    clients: Annotated[
        str,
        typer.Option(help="The clients' names, as in a,b,c, or their number, or 0 if unknown."),
    ] = "0",
    address: Annotated[
        str, typer.Option(help="parties.address: host:port of the coordinator.")
    ] = "",
    name: Annotated[str, typer.Option(help="Federation name. Default: the folder's name.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    accept_exposure: AcceptExposure = False,
) -> Result:
    """Write a commented settings file with safe values.

    With --data, the command reads the file once. It sets federation.maximum_users to the next power
    of two that is at least twice the number of users, so clients can join later.

    --auto says why it proposes what it writes. It proposes ease only with --accept-exposure, since
    ease discloses exact pair counts to every client. For a minute at most, it then trains on the
    data, and chooses regularisation and client.tail on validation items. It never uses test items.
    Defaults stay if validation can't tell. `fedrec tune` tries more settings.
    """
    from fedrec.errors import SettingsError

    if auto is not None and (data is not None or algorithm != _START):
        raise SettingsError(
            "--auto names the data and chooses the algorithm.",
            remedy="Omit --data and --algorithm, or omit --auto.",
        )
    data = auto or data
    starter, n_items = write_settings(
        path,
        algorithm=algorithm,
        protection=protection,
        data=data,
        clients=client_names(clients),
        address=address,
        name=name,
        force=force,
        accept_exposure=accept_exposure,
        auto=auto is not None,
    )
    n_users = starter.n_users
    accepted = f" {ACCEPT_EXPOSURE}" if accept_exposure else ""
    following = _next_commands(path, data, starter, accepted)
    counted = f"{data} has {count_of(n_users, 'user')} and {count_of(n_items, 'item')}."
    return Result(
        content={
            "path": str(path),
            "n_users": n_users,
            "n_items": n_items,
            "algorithm": starter.algorithm,
            "reasons": starter.reasons,
            "next": following,
        },
        text=(
            f"Wrote {path}.",
            *((counted,) if data is not None else ()),
            *((f"Proposed: {starter.algorithm}.",) if starter.reasons else ()),
            *starter.reasons,
            "Next:",
            *(f"  {command}" for command in following),
        ),
    )


def write_settings(
    path: Path,
    *,
    data: Path | None,
    clients: tuple[str, ...],
    address: str,
    catalogue: Path | None = None,
    algorithm: str = _START,
    protection: str = "bfv",
    name: str = "",
    force: bool = False,
    accept_exposure: bool = False,
    auto: bool = False,
) -> tuple[Starter, int]:
    """Write a first settings file. Return its settings, and the number of items in the data.

    Args:
        auto: choose the algorithm and its sizes by the data's shape.

    Raises:
        SettingsError: the file exists, the folder isn't writable, or the choices can't be combined.
        CatalogueMismatch: the catalogue in the data's folder lacks items of the data.
        StorageError: the file can't be written.
    """
    from fedrec.durable import replacing_text, unwritten
    from fedrec.errors import SettingsError
    from fedrec.listening import address_to_call
    from fedrec.plan.exposure import check_exposure
    from fedrec.settings.starter import Starter

    if path.exists() and not force:
        raise SettingsError(
            f"{path} already exists. It wasn't changed.",
            remedy="Choose another name, or give --force to replace it.",
        )
    folder = path.parent
    if catalogue is None and data is not None and (data.parent / CATALOGUE_FILE).is_file():
        catalogue = data.parent / CATALOGUE_FILE
    shape = None if data is None else _shape_of(data, catalogue)
    proposal = None
    if shape is not None and auto:
        proposal = _proposed(shape, protection, max(len(clients), 3), accept_exposure)
    # Before a minute of training.
    name = _checked_name(name) if name else _folder_name(folder)
    starter = Starter(
        name=name,
        algorithm=algorithm if proposal is None else proposal.algorithm,
        proposed={} if proposal is None else proposal.values,
        reasons=() if proposal is None else proposal.reasons,
        protection=protection,
        clients=clients,
        n_clients=len(clients),
        address=address and address_to_call(address, "--address"),
        n_users=0 if shape is None else shape.n_users,
        data="" if data is None else _relative(data, folder),
        catalogue="" if catalogue is None else _relative(catalogue, folder),
    )
    check_exposure(starter.plan, accepted=accept_exposure)
    if proposal is not None and data is not None:
        starter = _on_validation(starter, data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing_text(path) as file:
            file.write(starter.text(path.name))
    except OSError as error:
        raise unwritten(path, error, "Choose another folder.") from None
    return starter, 0 if shape is None else shape.n_items


def client_names(clients: str) -> tuple[str, ...]:
    """Return the clients' names. A number gives that many generated names."""
    from pydantic import ValidationError

    from fedrec.errors import SettingsError
    from fedrec.settings.schema import PartiesSettings

    if clients.strip().isdecimal():
        return tuple(f"client-{number}" for number in range(1, int(clients) + 1))
    names = [name.strip() for name in clients.split(",")]
    try:
        return tuple(PartiesSettings(clients=names).clients)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, clients: ")
        raise SettingsError(
            f"--clients is {clients!r}, expected a number or different names with commas: {why}",
            remedy="Name each client with letters, digits and . _ -, as in north,south,west.",
        ) from None


def _shape_of(data: Path, catalogue: Path | None) -> DataShape:
    """Return the shape of data, with rows as the starting settings train them."""
    import numpy as np

    from fedrec.algorithms.proposal import DataShape
    from fedrec.data import Catalogue
    from fedrec.data.source import kept_and_items, read_source
    from fedrec.settings.starter import MINIMUM_ITEM_USERS

    settings = data_settings(data)
    found = read_source(settings, reader="init", tell=echo_note)
    kept, items = kept_and_items(found, settings)
    if catalogue is not None:
        Catalogue.load(catalogue).check_has(kept, catalogue)
    _, holders = np.unique(kept.item_ids.astype(str), return_counts=True)
    trained = holders[holders >= MINIMUM_ITEM_USERS]
    return DataShape(
        n_users=kept.n_users,
        n_items=len(items),
        n_rows=len(trained),
        n_trained=int(trained.sum()),
    )


def _proposed(shape: DataShape, protection: str, n_clients: int, accept_exposure: bool) -> Proposal:
    """Return the algorithm and the sizes that suit the data.

    Raises:
        SettingsError: no item has enough users.
    """
    from fedrec.algorithms.proposal import propose
    from fedrec.errors import SettingsError
    from fedrec.plan.price import price
    from fedrec.settings.starter import Starter
    from fedrec.settings.validation import load_settings

    if not shape.n_rows:
        raise SettingsError(
            "No item of the data has enough users to be trained: the starting settings ask for 10.",
            remedy="Use more data, or write the file with --data and lower "
            "federation.minimum_item_users.",
        )

    def bytes_of(algorithm: str, values: Mapping[str, int]) -> int:
        starter = Starter(
            algorithm=algorithm, protection=protection, n_users=shape.n_users, proposed=values
        )
        known = {key: value for key, value in starter.values().items() if value is not None}
        plan = load_settings(values=known, environ={}).plan
        return price(plan, n_items=shape.n_rows, n_clients=n_clients).total_bytes

    return propose(shape, bytes_of, accepts_exposure=accept_exposure)


def _on_validation(starter: Starter, data: Path) -> Starter:
    """Return a starter with what validation chooses, and the reasons."""
    from dataclasses import replace

    from fedrec.cli.lazy import beside_verb
    from fedrec.data.source import read_users
    from fedrec.extras import how_to_install, is_missing
    from fedrec.plan.layout import training_modules

    missing = [name for name in training_modules(starter.plan) if is_missing(name)]
    if missing:
        untried = (
            "No setting was chosen on validation, since this machine can't train. To choose some: "
            f"{how_to_install(*missing)}"
        )
        return replace(starter, reasons=(*starter.reasons, untried))
    users, catalogue = read_users(data_settings(data), reader="init")
    known = {key: value for key, value in starter.values().items() if value is not None}
    found = beside_verb("tune", "choose_first")(
        known,
        users,
        catalogue,
        n_clients=max(len(starter.clients), 3),
        tell=lambda line: typer.echo(line, err=True),
    )
    return replace(
        starter,
        proposed={**starter.proposed, **found.values},
        reasons=(*starter.reasons, *found.reasons),
    )


def _next_commands(path: Path, data: Path | None, starter: Starter, accepted: str) -> list[str]:
    """Return the next commands to type, in order.

    Args:
        accepted: the flag after a blank, if users may be exposed.
    """
    shown = shlex.quote(str(path))
    commands = []
    if data is None:
        commands.append("fedrec data fetch ml-100k --into data   # or your own: set data.path")
    elif not starter.catalogue:
        beside = shlex.quote(str(data.parent / CATALOGUE_FILE))
        commands.append(f"fedrec data catalogue {shlex.quote(str(data))} --out {beside}")
    commands += [f"fedrec check {shown}{accepted}", f"fedrec simulate {shown}{accepted}"]
    if starter.clients:
        address = "" if starter.address else " --address HOST:PORT"
        commands.append(f"fedrec provision {shown}{address}   # a kit for each party")
    return commands


def _checked_name(name: str) -> str:
    from fedrec.errors import SettingsError
    from fedrec.plan.schema import FederationSettings
    from fedrec.settings.explain import all_settings, wrong_sentence

    try:
        return FederationSettings(name=name).name
    except ValueError:
        raise SettingsError(
            f"--name: {wrong_sentence('federation.name', name)}",
            remedy=all_settings()["federation.name"].sentence,
        ) from None


def _folder_name(folder: Path) -> str:
    """Return the folder's name as a federation's name, or the default if it has no letters."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.")
    return cleaned[:64] or "movies"


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to a settings file in `folder`."""
    try:
        relative = os.path.relpath(path, folder)
    except ValueError:  # another drive on Windows
        return str(path.resolve())
    return Path(relative).as_posix()
