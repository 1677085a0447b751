"""Flags that several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import KeysError, SettingsError, Unreachable
from fedrec.listening import address_to_call, written_address

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue
    from fedrec.data.splits import UserSplit
    from fedrec.plan.travelling_rows import Cells
    from fedrec.settings.schema import Settings
    from fedrec.wire.admin_link import AdminLink


_FLAG = "--accept-other-arithmetic"
"""The same flag as in `fedrec.environment`, whose import would delay every help page by a second.
"""

AcceptOtherArithmetic = Annotated[
    bool,
    typer.Option(
        _FLAG,
        help="Resume on a machine that rounds differently. Results are just as good, but not the "
        "same bits.",
    ),
]


def check_is_resumed(accepted: bool, resume: Path | None) -> None:
    """Refuse the flag for a run that isn't resumed.

    Raises:
        SettingsError: the flag was given without a folder to resume.
    """
    if accepted and resume is None:
        raise SettingsError(f"{_FLAG} works only for a resumed run.", remedy="Add --resume.")


ACCEPT_EXPOSURE = "--accept-exposure"

AcceptExposure = Annotated[
    bool,
    typer.Option(
        ACCEPT_EXPOSURE,
        help="Run a plan that shows the coordinator what users hold: an algorithm that "
        "reveals it without encryption, or indices in the clear.",
    ),
]


CELLS = "--cells"

CellsOf = Annotated[
    str,
    typer.Option(
        CELLS,
        metavar="N|ROSTER",
        help="The cells: a number, or a key authority's roster. An item is trained if enough users "
        "outside federation.corrupt_cells of the cells hold it.",
    ),
]


def read_cells(settings: Settings, given: str, clients: int) -> tuple[int, Cells, str]:
    """Return the number of clients, their cells, and a warning if the plan doesn't count cells.

    Args:
        given: the flag's value: a number, a roster's path, or nothing.
        clients: the requested number. 0 uses the minimum for the cells. Without cells, it is
            returned as it is.

    Raises:
        SettingsError: the clients can't form these cells.
        KeysError: the file isn't a roster.
    """
    from fedrec.errors import SettingsError
    from fedrec.identity.document import read_public
    from fedrec.identity.roster import MAX_BYTES, Roster
    from fedrec.plan.travelling_rows import (
        cells_in_use,
        cells_of_roster,
        deal_cells,
        fewest_clients_of,
    )

    plan = settings.plan
    if not given or (given.isdecimal() and int(given) < 2):
        return clients, (), ""
    if given.isdecimal():
        n_clients = clients or fewest_clients_of(plan, int(given))
        cells = deal_cells(plan, int(given), n_clients)
    else:
        names = settings.parties.clients
        n_clients = len(names)
        if clients not in (0, n_clients):
            raise SettingsError(
                f"--clients is {clients}, but parties.clients names {n_clients}.",
                remedy=f"Omit --clients, or give {CELLS} a number.",
            )
        content = read_public(
            Path(given), max_bytes=MAX_BYTES, remedy=f"Set {CELLS} to a number or a roster's path."
        )
        roster = Roster.from_json(content)
        cells = cells_in_use(plan, cells_of_roster(roster, names), n_clients)
    if cells or plan.counts_by_cell:
        return n_clients, cells, ""
    return (
        n_clients,
        (),
        f"{CELLS} changes no row. Cells count only if the key authority alone opens exact sums "
        "(protection.key_holder, privacy.mechanism) and federation.minimum_item_users is above 1.",
    )


def tell_rows(
    settings: Settings, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> dict[str, int] | None:
    """Print on stderr what only the data shows about the rows of a simulation.

    Warns of too few rows for the algorithm's settings. If there are cells, also prints the rows
    lost to them, and returns these for `--json`.
    """
    from fedrec.plan.algorithm import algorithm_warnings
    from fedrec.plan.travelling_rows import cell_rows, trained_items

    plan, known = settings.plan, algorithm_warnings(settings.plan)
    held = trained_items(plan, users, n_items, n_clients=n_clients, cells=cells)
    for warning in algorithm_warnings(plan, n_held=int(held.sum())):
        if warning not in known:
            typer.echo(f"warning: {warning}", err=True)
    if not cells:
        return None
    found = cell_rows(plan, users, n_items, n_clients=n_clients, cells=cells)
    typer.echo(found.sentence(plan), err=True)
    return asdict(found)


CandidateItems = Annotated[
    list[str] | None,
    typer.Option(
        "--candidates",
        metavar="ITEM|@FILE",
        help="Choose only from these items. Pass an item, or @FILE with one per line. Repeatable.",
    ),
]
ExcludedItems = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="ITEM|@FILE",
        help="Exclude these items. Pass an item, or @FILE with one item per line. Repeatable.",
    ),
]
SimilarTo = Annotated[
    str, typer.Option(metavar="ITEM", help="Find items like this one instead of items for a user.")
]


def items_of_flag(flag: str, given: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the items of a flag without duplicates.

    Args:
        flag: the flag's name, for errors.
        given: items or @FILE values.

    Raises:
        DataError: the catalogue has no such item. For a file, the error names the line.
    """
    from fedrec.errors import DataError

    found: dict[str, None] = {}
    for item, where in _lines(flag, given):
        if item not in catalogue:
            raise DataError(
                f"{where}: the model's catalogue has no item {item!r}.",
                remedy="Name items as in the model's catalogue.csv.",
            )
        found[item] = None
    return list(found)


def _lines(flag: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield items, each with its place for errors."""
    from fedrec.errors import DataError

    for value in given:
        if not value.startswith("@"):
            yield value, f"{flag} {value}"
            continue
        path = Path(value[1:])
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{flag} {value}: the file cannot be read: {error}.",
                remedy="Pass a text file with one item per line, or an item without the @.",
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield line.strip(), f"{flag} {value}, line {number}"


SettingsFile = Annotated[
    Path, typer.Argument(metavar="SETTINGS", help="The federation's settings file.")
]

SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting (rounds.total=5), or unset it (data.separator=). Repeatable.",
    ),
]


def words_of(flags: Mapping[str, object]) -> list[str]:
    """Return flags as on a command line.

    Args:
        flags: values by name. True is a bare flag, and a list repeats its flag. Without None,
            False, 0 and empty values.
    """
    words: list[str] = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value] if value else []:
            words += [flag] if each is True else [flag, str(each)]
    return words


def values_of(given: Sequence[str] | None) -> dict[str, object]:
    """Return the values of `--set` by dotted key. An empty value unsets the file's value.

    Raises:
        SettingsError: a value has no equals sign.
    """
    from fedrec.errors import SettingsError
    from fedrec.settings.validation import UNSET

    found: dict[str, object] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(
                f"--set {text} has no value.", remedy="Write it as --set rounds.total=5."
            )
        found[key.strip()] = value.strip() or UNSET
    return found


# In this folder, as for an operator or in the authority's own folder, or in a set of kits.
_USUAL_PLACES = (Path("operator.pem"), Path("kits/authority/operator.pem"))

_REMEDY = (
    "Check that the address is right and that the coordinator runs there. Check that --operator "
    "is the operator.pem from this federation's key authority."
)


def address_of_kits() -> str:
    """Return the coordinator's address in the kits of this folder.

    Clients' kits come first: they have the name that the coordinator's certificate is for.

    Raises:
        SettingsError: there are no kits, or they have several addresses.
    """
    from fedrec.settings.validation import load_settings

    here = Path()
    own = [load_settings(path, environ={}) for path in here.glob("kits/clients/*/client.toml")]
    own += [load_settings(path, environ={}) for path in here.glob("client.toml")]
    found = {settings.client.coordinator for settings in own}
    if not found:
        paths = [*here.glob("coordinator.toml"), *here.glob("kits/coordinator/coordinator.toml")]
        listening = [load_settings(path, environ={}).coordinator for path in paths]
        found = {
            written_address(one.host, one.port) for one in listening if one.host not in _WILDCARDS
        }
    if len(found) != 1:
        several = f" The kits here have several: {', '.join(sorted(found))}." if found else ""
        raise SettingsError(
            f"ADDRESS is missing, and it doesn't follow from kits in this folder.{several}",
            remedy="Pass host:port of the coordinator, or run this in the folder that has kits/.",
        )
    return found.pop()


_WILDCARDS = ("0.0.0.0", "::")
"""A coordinator that listens on them is reached by another name."""

Address = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="host:port of the coordinator. By default that of the kits in this folder.",
        show_default=False,
        callback=lambda value: address_to_call(value or address_of_kits(), "ADDRESS"),
    ),
]
OperatorFile = Annotated[
    Path | None,
    typer.Option(
        "--operator",
        help="An operator's key and certificate from the key authority. The default is "
        "operator.pem here, or in kits/authority.",
    ),
]


@contextmanager
def open_admin_link(address: str, operator: Path | None) -> Iterator[AdminLink]:
    """Open a link to the operators' service, without sending anything yet.

    Args:
        address: host:port of the coordinator.
        operator: the operator's file, or None to look in the usual places.

    Raises:
        KeysError: the operator's file can't be used.
        CertificateExpired: this machine's clock is outside the certificate's dates.
        Unreachable: in the body, if the coordinator didn't answer. The error gives the reason.
    """
    from fedrec.identity.certificates import Credentials
    from fedrec.wire.admin_link import AdminLink

    if operator is None:
        operator = next((path for path in _USUAL_PLACES if path.exists()), None)
    if operator is None:
        raise KeysError(
            "There is no operator.pem here, nor in kits/authority.",
            remedy="Set --operator to an operator's file. At the key authority, `fedrec provision "
            "--operator NAME` makes one.",
        )
    link = AdminLink(address, Credentials.load(operator, "--operator"))
    with closing(link):
        try:
            yield link
        except Unreachable as error:
            # A client's remedy doesn't help an operator.
            raise type(error)(f"{address}: {error.message}", remedy=_REMEDY) from None
