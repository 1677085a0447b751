"""`fedrec check --upgrade`: what this release would do with folders that an earlier one wrote.

Nothing is started or changed. Stop the processes of a folder first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from fedrec import __version__
from fedrec.algorithms.trained import TRAINER_VERSION
from fedrec.cli.terminal import Result, TextTable, count_of
from fedrec.errors import FedrecError, RefusedError, SettingsError, VersionMismatch
from fedrec.follower.database import (
    OLDER_FILE,
    STATE_FILE,
    STATE_FORMAT,
    Records,
    database_version,
    is_database,
    records_in,
)
from fedrec.formats import (
    BACKUP_FILE,
    COORDINATOR,
    ENVIRONMENT_NAME,
    RUN_FORMAT,
    check_format,
    check_run_folder,
)
from fedrec.identity.document import VERSIONS
from fedrec.identity.roster import Roster
from fedrec.plan.agreement import FORMS, plan_from_json
from fedrec.plan.exposure import check_member_exposure
from fedrec.plan.schema import PLAN_FORM, Plan
from fedrec.settings.validation import load_settings

COORDINATOR_DATABASE = "coordinator.sqlite"
_MEMBERS = "membership.json"
_REVEALER = "revealer"
_OTHER_WIRE = 9
"""The format of states whose runs have wire protocol 7."""
_SETTINGS = ("client.toml", "coordinator.toml", "federation.toml", "resolved.toml")
_NEXT_RUN = "begin the next run with an empty coordinator.state"
_NEW_KEYS = "provision the federation again: only each member can make and sign its newer keys"
_NO_DATABASE = (
    "isn't an SQLite database: it is damaged, or another program wrote it. Nothing was changed. "
    "Restore the whole folder from a backup (`fedrec coordinator backup` makes one)."
)
_BACKUP_STAYS = (
    f"{BACKUP_FILE} is from a conversion. The next published round deletes it. If no round "
    "follows, delete it."
)
_UNSTOPPED = "Its coordinator runs or was killed. If it runs, stop it and check again."
Outcome = Literal["reads", "converts", "refuses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The effect of this release on one folder or file.

    Attributes:
        format: its format number, or None if it has none.
        own: the format number that this release writes, or None.
        notes: more facts for its owner.
    """

    path: str
    what: str
    outcome: Outcome
    format: int | None = None
    own: int | None = None
    notes: tuple[str, ...] = ()


def upgraded(folder: Path) -> Result:
    """Report what this release would do with a folder and those inside it.

    Raises:
        SettingsError: the folder has nothing of fedrec.
    """
    folders = _folders(folder) if folder.is_dir() else ()
    found = [one for each in folders for one in _read(each)]
    if not found:
        raise SettingsError(
            f"{folder} has no settings, keys, state or run folder of fedrec.",
            remedy="Name a kit, a state folder, the key authority's folder or a run folder.",
        )

    def text() -> Iterator[str | TextTable]:
        rows = [
            (one.path, one.what, _formats(one), f"this release {one.outcome} it") for one in found
        ]
        yield TextTable(rows=rows, headers=("path", "what", "format", "at the first start"))
        yield from (f"{one.path}: {note}" for one in found for note in one.notes)
        yield f"fedrec {__version__} changed nothing."

    return Result(
        content={
            "folder": str(folder),
            "release": __version__,
            "found": [asdict(one) for one in found],
        },
        text=text(),
        failure=_failure([one.path for one in found if one.outcome == "refuses"]),
    )


def _failure(refused: Sequence[str]) -> VersionMismatch | None:
    if not refused:
        return None
    return VersionMismatch(
        f"This release can't use {count_of(len(refused), 'path')}, first {refused[0]}.",
        remedy="Keep the release that wrote it for this path, or follow the note about it.",
    )


def _formats(found: Outlook) -> str:
    if found.format is None:
        return ""
    return f"{found.format}" if found.format == found.own else f"{found.format} to {found.own}"


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    # Unlike `rglob`, this also names folders that can't be entered.
    yield from sorted(Path(at) / name for at, names, _ in os.walk(folder) for name in names)


def _read(folder: Path) -> list[Outlook]:
    """Return what is in one folder, or that it can't be read."""
    try:
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                path.lstat()
        found = list(_outlooks(folder))
    except (FedrecError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"It can't be read: {type(error).__name__}: {error}."
        return [Outlook(path=str(folder), what="unreadable", outcome="refuses", notes=(why,))]
    if found and (folder / BACKUP_FILE).exists():
        found[0] = replace(found[0], notes=(*found[0].notes, _BACKUP_STAYS))
    return found


def _outlooks(folder: Path) -> Iterator[Outlook]:
    """Yield what is in one folder, without those inside it."""
    if (folder / COORDINATOR_DATABASE).is_file():
        yield _coordinator(folder)
    if (folder / STATE_FILE).is_file() or (folder / OLDER_FILE).is_file():
        yield _follower(folder)
    elif (folder / ENVIRONMENT_NAME).is_file():
        yield _checked(folder, "run folder", partial(check_run_folder, folder), RUN_FORMAT)
    if (folder / _MEMBERS).is_file():
        yield _keys(folder)
    for name in _SETTINGS:
        if (folder / name).is_file():
            path = folder / name
            yield _checked(path, "settings", partial(load_settings, path))


def _checked(
    path: Path, what: str, check_one: Callable[[], object], own: int | None = None
) -> Outlook:
    """Return whether this release reads something that is never converted."""
    try:
        check_one()
    except FedrecError as error:
        return Outlook(path=str(path), what=what, outcome="refuses", notes=(str(error),))
    return Outlook(path=str(path), what=what, outcome="reads", format=own, own=own)


def _coordinator(folder: Path) -> Outlook:
    path, own = folder / COORDINATOR_DATABASE, COORDINATOR.own
    found = database_version(path) if is_database(path) else None
    notes: tuple[str, ...] = ()
    outcome: Outcome = "converts" if found in COORDINATOR.former else "reads"
    if found is None:
        outcome, notes = "refuses", (f"{path} {_NO_DATABASE}",)
    elif found not in (*COORDINATOR.former, own):
        outcome, notes = "refuses", (_refusal(found, own, f"{folder}", _NEXT_RUN),)
        if (folder / f"{COORDINATOR_DATABASE}-wal").exists():
            notes = (*notes, _UNSTOPPED)
    elif outcome == "converts" and (why := _changed_in_kit(folder.parent)):
        outcome, notes = "refuses", (f"Its run can't continue with this release: {why}.",)
    return Outlook(
        path=str(folder),
        what="coordinator's state",
        outcome=outcome,
        format=found,
        own=own,
        notes=notes,
    )


def _changed_in_kit(kit: Path) -> str:
    """Return why the run of a former database can't continue, as far as its kit shows it."""
    try:
        plan = load_settings(kit / "coordinator.toml").plan
    except FedrecError:
        return ""
    return FORMS[1].changed(plan)


def _refusal(found: int | None, own: int, what: str, anew: str) -> str:
    try:
        check_format(found, own, what, anew=anew)
    except VersionMismatch as error:
        return str(error)
    return ""


def _follower(folder: Path) -> Outlook:
    try:
        number, tables = records_in(folder)
    except FedrecError as error:
        return Outlook(
            path=str(folder),
            what="client's or authority's state",
            outcome="refuses",
            notes=(str(error),),
        )
    run = tables["run"]
    is_client = folder.parent.name != _REVEALER
    outcome: Outcome = "reads" if number == STATE_FORMAT else "converts"
    if run and number != _OTHER_WIRE and _changed(_plan_of(run)):
        outcome = "refuses"
    return Outlook(
        path=str(folder),
        what="client's state" if is_client else "key authority's state",
        outcome=outcome,
        format=number,
        own=STATE_FORMAT,
        notes=tuple(_of_run(number, run, tables["client"], is_client=is_client)) if run else (),
    )


def _of_run(number: int, run: Records, own: Records, *, is_client: bool) -> Iterator[str]:
    """Yield notes about the run of a follower's state, whose format has a number."""
    pin = json.loads(run["pin"])
    if number == _OTHER_WIRE:
        yield (
            f"Run {pin['run']} can't continue: its statements are signed in the form of wire "
            "protocol 7. Start the next run with --new-run. Spent privacy stays counted."
        )
        return
    plan = _plan_of(run)
    if why := _changed(plan):
        yield (
            f"Run {pin['run']} can't continue with this release: {why}. Start the next run with "
            "--new-run."
        )
    elif plan.form < PLAN_FORM:
        yield (
            f"Run {pin['run']} began with release {FORMS[plan.form].release} and continues by its "
            "rules. New runs have this release's."
        )
    if not is_client:
        return
    path = (json.loads(run["provenance"]) or {}).get("path")
    if path and path.startswith("trainer ") and path != f"trainer {TRAINER_VERSION}":
        yield (
            f"Its users are trained with trainer {TRAINER_VERSION} in place of {path} from the "
            "next round. Updates are as good, and their last bits differ."
        )
    if "roster" in own:
        yield from _asked(plan, Roster.from_json(own["roster"]))


def _plan_of(run: Records) -> Plan:
    return plan_from_json(json.loads(run["pin"])["plan_json"].encode())


def _changed(plan: Plan) -> str:
    """Return why a run with this plan can't continue with this release, or nothing."""
    return FORMS[plan.form].changed(plan)


def _asked(plan: Plan, roster: Roster) -> Iterator[str]:
    """Yield what the client asks its owner before it continues."""
    n_cells = len(roster.partition.in_use)
    try:
        check_member_exposure(plan, n_cells=n_cells, floor=1, accepted=False)
    except RefusedError as error:
        yield f"It asks for consent, unless its settings give it. {error}"


def _keys(folder: Path) -> Outlook:
    """Return whether this release reads the documents of a key authority's folder."""
    notes = []
    for path in sorted(folder.rglob("*.json")):
        kind, found = _document(path)
        own = VERSIONS.get(kind, 1)
        if kind and found != own:
            notes.append(f"{path.name}: {_refusal(found, own, kind, _NEW_KEYS)}")
    outcome: Outcome = "refuses" if notes else "reads"
    own = VERSIONS["fedrec authority membership"]
    return Outlook(
        path=str(folder),
        what="key authority's keys",
        outcome=outcome,
        notes=tuple(notes),
        format=_document(folder / _MEMBERS)[1],
        own=own,
    )


def _document(path: Path) -> tuple[str, int | None]:
    """Return the kind and version of a document, or an empty kind."""
    try:
        content = json.loads(path.read_bytes())
        return str(content["kind"]), int(content["version"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", None
