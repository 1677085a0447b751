"""Flags that several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import SettingsError, Unreachable
from fedrec.listening import address_to_call

if TYPE_CHECKING:
    from fedrec.data.catalogue import Catalogue
    from fedrec.data.splits import UserSplit
    from fedrec.plan.travelling_rows import Cells
    from fedrec.settings.schema import Settings
    from fedrec.wire.admin_link import AdminLink


_FLAG = "--accept-other-arithmetic"
"""As in `fedrec.environment`, whose import would cost every help a second."""

AcceptOtherArithmetic = Annotated[
    bool,
    typer.Option(
        _FLAG,
        help="Go on where training rounds otherwise than before: as good, but not the same bits.",
    ),
]


def check_is_resumed(accepted: bool, resume: Path | None) -> None:
    """Refuse the flag where nothing is gone on with.

    Raises:
        SettingsError: it was given without a folder to resume.
    """
    if accepted and resume is None:
        raise SettingsError(f"{_FLAG} is about a run that goes on.", remedy="Give --resume, too.")


ACCEPT_EXPOSURE = "--accept-exposure"

AcceptExposure = Annotated[
    bool,
    typer.Option(
        ACCEPT_EXPOSURE,
        help="Run what shows the coordinator what users hold: an algorithm that does so without "
        "encryption, or indices in the clear.",
    ),
]


CELLS = "--cells"

CellsOf = Annotated[
    str,
    typer.Option(
        CELLS,
        metavar="N|ROSTER",
        help="Cells of a deployed federation, as the key authority would make them, or its roster; "
        "items are trained that enough users hold outside federation.corrupt_cells of them.",
    ),
]


def read_cells(settings: Settings, given: str, clients: int) -> tuple[int, Cells, str]:
    """Return the number of clients, their cells, and a warning where the plan counts no cells.

    Args:
        given: the flag: a number, a roster's path, or nothing.
        clients: as asked for; 0 takes as few as the cells have, and is returned without cells.

    Raises:
        SettingsError: the clients make no such cells.
        KeysError: the file is no roster.
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
                remedy=f"Leave --clients out, or give {CELLS} a number.",
            )
        content = read_public(
            Path(given), max_bytes=MAX_BYTES, remedy=f"Give {CELLS} a number, or a roster's path."
        )
        roster = Roster.from_json(content)
        cells = cells_in_use(plan, cells_of_roster(roster, names), n_clients)
    if cells or plan.counts_by_cell:
        return n_clients, cells, ""
    return (
        n_clients,
        (),
        f"{CELLS} changes no row: cells are counted only where the key authority alone opens exact "
        "sums (protection.key_holder, privacy.mechanism) and federation.minimum_item_users is "
        "above 1.",
    )


def tell_rows(
    settings: Settings, users: UserSplit, n_items: int, *, n_clients: int, cells: Cells
) -> dict[str, int] | None:
    """Say on stderr which rows cells cost, and return it for `--json`; without cells nothing."""
    from fedrec.plan.travelling_rows import cell_rows

    if not cells:
        return None
    found = cell_rows(settings.plan, users, n_items, n_clients=n_clients, cells=cells)
    typer.echo(found.sentence(settings.plan), err=True)
    return asdict(found)


CandidateItems = Annotated[
    list[str] | None,
    typer.Option(
        "--candidates",
        metavar="ITEM|@FILE",
        help="Choose from these items alone: an item, or @FILE with one a line; repeat it.",
    ),
]
ExcludedItems = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="ITEM|@FILE",
        help="Never these items: an item, or @FILE with one a line; repeat it.",
    ),
]
SimilarTo = Annotated[
    str, typer.Option(metavar="ITEM", help="The items most like this one, instead of a user's.")
]


def items_of_flag(flag: str, given: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the items that a flag gives, each once.

    Args:
        flag: its name, for errors.
        given: an item each, or @FILE.

    Raises:
        DataError: the catalogue has no such item; it names the line of a file.
    """
    from fedrec.errors import DataError

    found: dict[str, None] = {}
    for item, where in _lines(flag, given):
        if item not in catalogue:
            raise DataError(
                f"{where}: the model's catalogue has no such item: {item!r}.",
                remedy="Give items as the catalogue.csv of the model names them.",
            )
        found[item] = None
    return list(found)


def _lines(flag: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield items and where they stand."""
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
                remedy="Give a text file with one item a line; an item itself has no @.",
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield line.strip(), f"{flag} {value}, line {number}"


SettingsFile = Annotated[
    Path, typer.Argument(metavar="SETTINGS", help="The federation's settings.")
]

SetValues = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrule a setting, as in rounds.total=5; data.separator= unsets one. Repeat it.",
    ),
]


def values_of(given: Sequence[str] | None) -> dict[str, object]:
    """Return what `--set` was given, by dotted key; no value takes the file's away.

    Raises:
        SettingsError: for text without an equals sign.
    """
    from fedrec.errors import SettingsError
    from fedrec.settings.validation import UNSET

    found: dict[str, object] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(
                f"--set {text} names no value.", remedy="Write it as --set rounds.total=5."
            )
        found[key.strip()] = value.strip() or UNSET
    return found


# Beside oneself, as it is carried to an operator and as it lies in the authority's own folder; in
# a set of kits.
_USUAL_PLACES = (Path("operator.pem"), Path("kits/authority/operator.pem"))

_REMEDY = (
    "Check the address, that the coordinator runs there, and that --operator is the operator.pem "
    "that this federation's key authority made."
)

Address = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="host:port of the coordinator.",
        callback=lambda value: address_to_call(value, "ADDRESS"),
    ),
]
OperatorFile = Annotated[
    Path | None,
    typer.Option(
        "--operator",
        help="An operator's key and certificate, which the key authority made; by default "
        "operator.pem here, or in kits/authority.",
    ),
]


@contextmanager
def open_admin_link(address: str, operator: Path | None) -> Iterator[AdminLink]:
    """Open a link to the operators' service; nothing is sent yet.

    Args:
        address: host:port of the coordinator.
        operator: the operator's file; None looks for it in the usual places.

    Raises:
        KeysError: when the operator's file cannot be used.
        CertificateExpired: when this machine's clock is outside the certificate's dates.
        Unreachable: in the body, when the coordinator did not answer, and why.
    """
    from fedrec.identity.certificates import Credentials
    from fedrec.wire.admin_link import AdminLink

    if operator is None:
        operator = next((path for path in _USUAL_PLACES if path.exists()), _USUAL_PLACES[0])
    link = AdminLink(address, Credentials.load(operator, "--operator"))
    with closing(link):
        try:
            yield link
        except Unreachable as error:
            # What a client would look at says nothing to an operator.
            raise type(error)(f"{address}: {error.message}", remedy=_REMEDY) from None
