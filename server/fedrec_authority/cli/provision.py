"""`fedrec provision`: create every party's kit, on the key authority's machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.data_options import echo_note
from fedrec.cli.terminal import Result, count_of
from fedrec.extras import require

if TYPE_CHECKING:
    from fedrec.data import Catalogue, Interactions
    from fedrec.errors import FedrecError
    from fedrec.settings.schema import Settings
    from fedrec_authority.provisioning import Kit


EPILOG = (
    "Examples:\n"
    "  fedrec provision --data data/interactions.csv --clients a,b,c --address 127.0.0.1:7447\n"
    "  fedrec provision --catalogue items.csv --clients north,south,west "
    "--address fedrec.example:7447\n"
    "  fedrec provision federation.toml --into kits\n"
    "  fedrec provision --add hospital-d"
)


_PROTECTION = "bfv"


def provision(
    settings_file: Annotated[
        Path,
        typer.Argument(
            metavar="SETTINGS", help="The federation's settings. Written if the file is missing."
        ),
    ] = Path("federation.toml"),
    data: Annotated[
        Path | None,
        typer.Option(help="A trial: interactions whose users are distributed over the clients."),
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="The public items, if clients have their own data.")
    ] = None,
    clients: Annotated[
        str, typer.Option(help="parties.clients: the clients' names, separated by commas.")
    ] = "",
    address: Annotated[
        str, typer.Option(help="parties.address: host:port of the coordinator.")
    ] = "",
    add: Annotated[
        str,
        typer.Option(
            help="Create one more client's kit only. Run it again to replace an expired or lost "
            "invitation."
        ),
    ] = "",
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="With --add: people compare the client's id before it becomes a member.",
        ),
    ] = False,
    operator: Annotated[
        str,
        typer.Option(
            help="Create an operator's credentials for `fedrec status`, `watch` and `stop`, but "
            "no kit. Run it again to replace lost ones."
        ),
    ] = "",
    remove_operator: Annotated[
        str, typer.Option(help="Revoke an operator's certificate, and create no kit.")
    ] = "",
    into: Annotated[Path, typer.Option(help="Folder for the kits.")] = Path("kits"),
    archive: Annotated[
        bool,
        typer.Option(
            "--archive", help="Also write each kit as one file to carry, and print its SHA-256."
        ),
    ] = False,
) -> Result:
    """Create a kit for the coordinator and for each client. This machine is the key authority.

    A kit is a folder that you carry to its owner by hand. Its command runs without edits. A client
    makes its own keys and applies with its kit's invitation, which works once within 14 days. The
    authority then admits it. Rounds begin when all clients have applied.

    Without a settings file, one is written with safe values, from --clients, --address and either
    --data or --catalogue. A trial's data is read according to its description and the settings'
    data section. The kits have it as an interactions.csv in fedrec's own format.
    """
    from fedrec.cli.init import client_names
    from fedrec.durable import require_writable
    from fedrec.listening import address_to_call
    from fedrec.plan.layout import protection_modules
    from fedrec.settings.validation import load_settings
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.provisioning import (
        AUTHORITY_KIT,
        CLIENTS,
        add_client,
        exposure_words,
        presence_words,
    )
    from fedrec_authority.provisioning import provision as make_kits

    address = address and address_to_call(address, "--address")
    if into.exists():
        require_writable(into, "--into")
    if operator or remove_operator:
        return _change_operators(into, operator, remove_operator)
    if add:
        if not settings_file.exists():
            raise _no_settings_to_add(settings_file, add)
        is_again = (into / CLIENTS / add).is_dir()
        settings = load_settings(settings_file, {"parties.address": address or None})
        kit = add_client(settings, into, add, confirm=confirm)
        roster = AuthorityFolder(into / AUTHORITY_KIT).last_roster
        why = ""
        if roster is not None and roster.partition.in_use and add not in settings.parties.go_on:
            why = roster.why_unplaced(joining=1)
        notes = [f"Once it has joined, {add} waits: {why}."] if why else []
        if is_again:
            notes.append("Its invitation.pem is new. This revokes the earlier invitation.")
        waits: dict[str, object] = {"waits": why} if why else {}
        return _result((kit,), into, settings, waits, notes, archive, is_added=True)
    if not settings_file.exists():
        _write_settings(settings_file, data, catalogue, clients, address)
    overrides: dict[str, object] = {"parties.address": address or None}
    overrides["data.path"] = None if data is None else str(data)
    if clients:
        overrides["parties.clients"] = list(client_names(clients))
    settings = load_settings(settings_file, overrides)
    require(*protection_modules(settings.plan))
    items, interactions = _items(settings, data, catalogue)
    kits = make_kits(settings, into, items, interactions=interactions)
    presence = presence_words(settings)
    exposure = exposure_words(settings, len(settings.parties.clients))
    content: dict[str, object] = {"settings": str(settings_file), "n_items": len(items)}
    content["presence"] = presence
    content |= {"exposure": exposure} if exposure else {}
    notes = [f"\n{words}" for words in (presence, exposure) if words]
    return _result(kits, into, settings, content, notes, archive)


def _change_operators(into: Path, add: str, remove: str) -> Result:
    from fedrec_authority.provisioning import add_operator, remove_operator

    listed = remove_operator(into, remove) if remove else None
    made = None
    if add:
        made, listed = add_operator(into, add)
    carried = f"{made}: carry it to {add}, for `fedrec status` and `watch` with --operator."
    return Result(
        content={"made": None if made is None else str(made), "operators": str(listed)},
        text=(
            *((carried,) if made is not None else ()),
            f"{listed}: carry it to the coordinator, in place of its kit's operator.crt. It is "
            "read at every call, so no restart is needed.",
        ),
    )


def _write_settings(
    path: Path,
    data: Path | None,
    catalogue: Path | None,
    clients: str,
    address: str,
) -> None:
    """Write a first settings file, as `fedrec init` does."""
    from fedrec.cli.init import client_names, write_settings
    from fedrec.errors import SettingsError
    from fedrec.plan.protections import about_protection

    if not (clients and address and (data or catalogue)):
        raise SettingsError(
            f"{path} does not exist.",
            remedy="Write one with `fedrec init`, or add --clients a,b,c, --address HOST:PORT and "
            "either --data FILE (a trial) or --catalogue FILE.",
        )
    require(*about_protection(_PROTECTION).modules(""))
    write_settings(
        path,
        protection=_PROTECTION,
        data=data,
        catalogue=catalogue,
        clients=client_names(clients),
        address=address,
    )
    typer.echo(f"Wrote {path}. `fedrec check {path}` shows what it costs.", err=True)


def _items(
    settings: Settings, data: Path | None, catalogue: Path | None
) -> tuple[Catalogue, Interactions | None]:
    """Return the public items and, for a trial, the interactions to distribute."""
    from fedrec.data import Catalogue
    from fedrec.data.source import check_one_party, kept_and_items, read_source
    from fedrec.errors import SettingsError

    if data is None and catalogue is None and settings.data.path is not None:
        data = Path(settings.data.path)
    if catalogue is None and settings.data.catalogue is not None:
        catalogue = Path(settings.data.catalogue)
    if data is None and catalogue is None:
        raise SettingsError(
            "No items are given.", remedy="Add --catalogue FILE or, for a trial, --data FILE."
        )
    if data is None:
        assert catalogue is not None
        check_one_party(settings.data)
        return Catalogue.load(catalogue), None
    found = read_source(settings.data, reader="a trial", tell=echo_note)
    beside = catalogue or data.parent / "catalogue.csv"
    known = beside.is_file() or catalogue is not None
    kept, items = kept_and_items(
        found, settings.data, Catalogue.load(beside) if known else None, tell=echo_note
    )
    items.check_has(kept, beside)
    return items, kept


def _no_settings_to_add(path: Path, name: str) -> FedrecError:
    from fedrec.errors import SettingsError

    return SettingsError(
        f"{path} does not exist. A new kit needs the settings of the other kits.",
        remedy="Pass the federation's settings and the folder of its kits: `fedrec provision "
        f"federation.toml --add {shlex.quote(name)} --into kits`.",
    )


def _result(
    kits: tuple[Kit, ...],
    into: Path,
    settings: Settings,
    content: dict[str, object],
    notes: list[str],
    archive: bool,
    *,
    is_added: bool = False,
) -> Result:
    """Return the result of a command: the created kits, further content and text."""
    from fedrec_authority.provisioning import AUTHORITY_KIT, COORDINATOR_KIT, archived, stays_here

    address = "" if is_added else settings.parties.address
    authority = shlex.quote(str(into / AUTHORITY_KIT))
    runs = f"fedrec keys authority run {address} --into {authority}"
    made = [{"party": k.party, "folder": str(k.folder), "command": k.command} for k in kits]
    lines, files = [], list(map(archived, kits)) if archive else []
    for record, (file, checksum) in zip(made, files, strict=False):
        record |= {"archive": str(file), "sha256": checksum}
        notes.append(
            f"{file}: SHA-256 {checksum}. Its owner compares `sha256sum {file.name}` before "
            f"`tar xzf {file.name}`."
        )
    for kit in kits:
        at = f"to {address}" if kit.party == COORDINATOR_KIT else f"to {kit.party}, by hand"
        action = f"carry it {at}, and run there"
        if stays_here(settings):
            action = f"for {kit.party}, on this machine: run"
        lines.append(f"{kit.folder}: {action}\n  {kit.command}")
    if address:
        lines += [
            f"{authority} stays here, because this machine is the key authority. Run\n  {runs}",
            f"\nRounds begin when {count_of(len(kits) - 1, 'client')} have applied. To run all of "
            f"it on this machine, for a trial:\n  fedrec up {shlex.quote(str(into))}",
        ]
    return Result(
        content=content | {"kits": made} | ({"authority": runs} if address else {}),
        text=(*lines, *notes),
    )
