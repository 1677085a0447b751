"""Rebuild a coordinator's state folder from the key authority's data.

The existing folder is moved away as it is, and nothing in it is deleted. Sums that the key
authority sealed stay sealed. The coordinator serves them to members as before.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.durable import make_private, sync
from fedrec.errors import RefusedError, SettingsError, StateWentBack, StorageError
from fedrec.identity.document import read_public
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_of_run
from fedrec.settings.schema import Settings
from fedrec.state_folder import FolderLock
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RevealStatement, manifest_digest
from fedrec.wire.recovery import MAX_BYTES, RecoveryPoint
from fedrec_server.federation import Federation, PublicCatalogue
from fedrec_server.peers.key_rotation import keep_epoch
from fedrec_server.rounds.revealing import numbers_used
from fedrec_server.store.durable_files import sealed_name, snapshot_name
from fedrec_server.store.sqlite import SqliteStore
from fedrec_server.store.state_folder import FormerFolder, installed_bundle, read_former_folder
from fedrec_server.store.writing import Recovered, RecoveredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        round: the last published round that is known.
        aside: the new path of the previous folder, or None if there was none.
        has_model: whether members can fetch the model from the new folder.
    """

    run: str
    round: RoundId
    aside: Path | None
    has_model: bool


def recover(
    settings: Settings, catalogue: PublicCatalogue, vectors: RoundVectors, file: Path, *, now: float
) -> Recovery:
    """Rebuild the state folder. The coordinator continues with the next round.

    Args:
        file: the file from `fedrec keys export-recovery`.
        now: the time in unix seconds.

    Raises:
        FolderInUse: a coordinator is running on the folder.
        SettingsError: the settings are for a different federation.
        StateWentBack: the folder has later rounds than the file.
        FedrecError: the file is damaged, for another federation, or not from the key authority.
        StorageError: the folder cannot be written.
    """
    raw = read_public(file, max_bytes=MAX_BYTES, remedy="Check the path.")
    point = RecoveryPoint.from_bytes(raw, str(file))
    federation = _federation(settings, catalogue, vectors, point)
    _check(point, federation)
    state = Path(settings.coordinator.state)
    lock = FolderLock(state, "coordinator.state") if state.is_dir() else None
    try:
        found = read_former_folder(state)
        signed = point.statement
        if found.run == point.run and found.published > (0 if signed is None else signed.round):
            raise StateWentBack(
                f"{str(state)!r} has round {found.published} of this run, but {file} ends earlier.",
                remedy="No file was changed. Start the coordinator on the existing folder, or run "
                "`fedrec keys export-recovery` again.",
            )
        if found.run != point.run:
            found = FormerFolder()
        draft = state.parent / f".{state.name}-{secrets.token_hex(8)}"
        make_private(state.parent)
        try:
            _write(draft, federation, point, found, now)
            aside = _swap(state, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"The folder cannot be rebuilt: {error}.", remedy="Free disk space, then try again."
        ) from error
    finally:
        if lock is not None:
            lock.release()
    return Recovery(
        run=point.run,
        round=RoundId(0) if signed is None else signed.round,
        aside=aside,
        has_model=bool(point.model),
    )


def _federation(
    settings: Settings, catalogue: PublicCatalogue, vectors: RoundVectors, point: RecoveryPoint
) -> Federation:
    """Return the federation in the newest epoch of the file and the settings."""
    path, given = Path(settings.coordinator.epoch), None
    if path.exists():
        given = KeyEpoch.load(path)
    else:
        installed = installed_bundle(Path(settings.coordinator.state))
        given = None if installed is None else KeyEpoch.from_json(installed)
    # Members sign the plan in the form of the release that began the run.
    former = read_former_folder(Path(settings.coordinator.state)).plan_fingerprint
    signed = {header.plan_fingerprint for header in point.contributions}
    plan = plan_of_run(settings.plan, former, *signed)
    found = Federation.of(plan, catalogue, vectors, point.keys)
    if given is None or given == point.keys:
        return found
    if given.roster.epoch > point.keys.roster.epoch:
        return found.following(given)
    return replace(found, keys=given).following(point.keys)


def _check(point: RecoveryPoint, federation: Federation) -> None:
    """Refuse statements that are not from this federation's key authority.

    Raises:
        RefusedError: the statement is from a different party, or not about an opened round.
        BadSignature: the signature does not match.
    """
    known = {revealer.client_id: revealer for revealer in point.revealers}
    wanted = (federation.identity.federation, point.run)
    for signed in (point.statement, point.head):
        if signed is None:
            continue
        signer = known.get(signed.client_id)
        if signer is None or (signed.federation, signed.run) != wanted:
            raise RefusedError("The file has no statement of this federation's key authority.")
        verify(signer.signing_key, signed.statement(), signed.signature)
    opened = point.statement
    if opened is None:
        return
    if opened.refused:
        raise RefusedError(f"The key authority refused round {opened.round}.")
    listed = manifest_digest(point.run, opened.round, point.contributions)
    if point.sealed and (Blob.of(point.sealed).digest, listed) != (
        opened.published_digest,
        opened.manifest_digest,
    ):
        raise RefusedError(f"The sum of round {opened.round} is not the signed one.")


def _write(
    draft: Path, federation: Federation, point: RecoveryPoint, found: FormerFolder, now: float
) -> None:
    store = SqliteStore(draft, federation.identity)
    try:
        store.begin_from(_rows(store, federation.keys.roster.epoch, point, found, now))
        # Once the store has the run's name, which the log repeats.
        keep_epoch(store, federation.keys, federation.keys.to_json(), now)
    finally:
        store.close()


def _rows(
    store: SqliteStore, epoch: int, point: RecoveryPoint, found: FormerFolder, now: float
) -> RecoveredRun:
    statement, sealed, model = point.statement, None, None
    words: list[RevealStatement] = [one for one in (statement, point.head) if one is not None]
    if statement is not None and point.sealed:
        name = sealed_name(statement.round, Blob.of(point.sealed))
        sealed = (name, store.spool.write(name, point.sealed))
    if statement is not None and point.model:
        model = Blob.of(point.model)
        store.spool.write(snapshot_name(statement.round, model), point.model)
    # Later statements name all paused cells of the epoch. A refusal may be the first to name one.
    paused = {cell: one.round for one in words if one.epoch == epoch for cell in one.paused}
    used = [(one.round, one.epoch, epoch) for one in words]
    before = Recovered.after(
        statement,
        last_round=max(found.last_round, *(numbers_used(*one) for one in used), 0),
        charged=max(found.charged, *(one.charged for one in words), 0),
    )
    return RecoveredRun(
        run=point.run,
        before=before,
        statement=statement,
        contributions=point.contributions if sealed is not None else (),
        latest=tuple(header for header in found.latest if header.round <= before.round),
        sealed=sealed,
        model=model,
        former=point.revealers[1:],
        at=now,
        epoch=epoch,
        paused=paused,
    )


def _swap(state: Path, draft: Path) -> Path | None:
    """Move the new folder into place. Return the new path of the old one.

    If the process is killed in between, there is no folder, and the next call creates it.
    """
    aside = None
    if state.exists():
        numbers = (f"{state.name}.before-recovery-{number}" for number in range(1, 10_000))
        names = (state.with_name(name) for name in numbers)
        aside = next((path for path in names if not path.exists()), None)
        if aside is None:
            raise SettingsError(f"There is no free name to which {str(state)!r} can be renamed.")
        os.replace(state, aside)
    os.replace(draft, state)
    sync(state.parent)
    return aside
