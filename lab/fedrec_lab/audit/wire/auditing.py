"""The whole audit: recordings, folder, truth, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrec.errors import DataError
from fedrec.plan.algorithm import algorithm_of
from fedrec.settings.schema import Settings
from fedrec.wire.recording import SUFFIX, FrameReader
from fedrec_lab.audit.wire.declared import BLOBS, file_kind
from fedrec_lab.audit.wire.findings import (
    ClientRow,
    EpochRow,
    Finding,
    WireReport,
    storage_findings,
    traffic_findings,
)
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.reading import BlobTally
from fedrec_lab.audit.wire.storage import UPDATES, Storage
from fedrec_lab.audit.wire.traffic import BlobKey, Traffic
from fedrec_lab.audit.wire.truth import MODEL, Search, Truth

_UPLOADS = BlobKey("SubmitUpdate", "request")


def audit_wire(
    settings: Settings,
    *,
    recording: Path | None = None,
    truth: Sequence[Path] = (),
    epochs: Sequence[Path] = (),
) -> WireReport:
    """Report what a coordinator could read of its traffic and its folder.

    Args:
        settings: the coordinator's settings.
        recording: a folder of recordings, or one of them. Without it, only the state folder is
            checked.
        truth: clients' folders, whose content is searched for.
        epochs: files and folders with the signed rosters of earlier key epochs.

    Raises:
        SettingsError: if the settings are not for a coordinator.
        DataError: if a given folder has nothing to read.
        StorageError: if a recording or the coordinator's database is damaged.
        KeysError: if a key epoch cannot be read.
        BadSignature: if a roster is from a different authority.
    """
    known = Known.of(settings, epochs)
    parameters = algorithm_of(known.plan, 1).parameters
    received = {entry.name for entry in parameters if entry.received}
    secrets = Truth.of(truth, known.item_ids, received=received) if truth else Truth()
    search = None if secrets.is_empty else Search(secrets)
    traffic, storage = Traffic(known, search), Storage(known, search)
    paths = [] if recording is None else _recordings(recording)
    for path in paths:
        traffic.read(FrameReader(path))
    storage.read()
    return _report(known, traffic, storage, secrets, len(paths))


def _recordings(place: Path) -> list[Path]:
    found = [place] if place.is_file() else sorted(place.glob(f"*{SUFFIX}"))
    if not found:
        raise DataError(
            f"{place} has no recording (*{SUFFIX}).",
            remedy="Record one with `fedrec coordinator run SETTINGS --record-wire FOLDER`.",
        )
    return found


def _report(
    known: Known, traffic: Traffic, storage: Storage, secrets: Truth, recordings: int
) -> WireReport:
    findings = (*traffic_findings(traffic), *storage_findings(storage))
    uploads = traffic.blobs.get(_UPLOADS, BlobTally())
    # If the key authority does not open a sum, it is published as it was made.
    opened = known.plan.authority_opens
    stored = "published sum" if opened else "sum"
    published = storage.blobs.get(stored, BlobTally())
    sizes = storage.files.get(stored)
    search = traffic.search
    found = {} if search is None else {f"{a} in {b}": n for (a, b), n in search.found.items()}
    return WireReport(
        protection=known.plan.protection.name,
        recordings=recordings,
        messages=traffic.messages,
        n_bytes=traffic.n_bytes,
        context_bytes=len(known.context),
        context_problem=known.context_problem(known.context),
        updates=uploads.blobs,
        readable_updates=uploads.readable,
        readable_values=uploads.values,
        clear_indices=known.protection.chosen.entries,
        kept_updates=sum(
            file_kind(path.relative_to(known.state).as_posix()) in UPDATES
            for path in known.state.rglob("*")
        ),
        published=published.blobs,
        published_bytes=0 if sizes is None else sizes.n_bytes,
        published_readable=published.readable,
        searched=_searched(secrets),
        found=found,
        findings=findings,
        clients=tuple(_client_rows(traffic, uploads)),
        epochs=tuple(_epoch_rows(traffic)),
        problems=_problems(known, traffic, storage, findings),
        notes=tuple(_notes(traffic, secrets, recordings)),
    )


def _problems(
    known: Known, traffic: Traffic, storage: Storage, findings: tuple[Finding, ...]
) -> tuple[str, ...]:
    found = [problem for finding in findings for problem in finding.problems]
    for problems in (traffic.problems, storage.problems):
        found += [f"{text} ({count} times)" for text, count in sorted(problems.items())]
    found += [
        f"{count} messages of {method or 'an unnamed method'} are not part of the protocol"
        for method, count in sorted(traffic.unreadable.items())
    ]
    context = known.context_problem(known.context)
    if context:
        found.append(f"the context in coordinator.epoch: {context}")
    if traffic.search is not None:
        found += [
            f"{what} found in {where}, {count} times"
            for (what, where), count in sorted(traffic.search.found.items())
            if what != MODEL or known.hides("sums")
        ]
    return tuple(found)


def _client_rows(traffic: Traffic, uploads: BlobTally) -> list[ClientRow]:
    rows = []
    for client in sorted(set(traffic.calls) | set(traffic.sent)):
        seen, readable = uploads.by_client.get(client, (0, 0))
        rows.append(
            ClientRow(
                client_id=client,
                calls=traffic.calls[client],
                sent=traffic.sent[client],
                received=traffic.received[client],
                updates=seen,
                readable_updates=readable,
            )
        )
    return rows


def _epoch_rows(traffic: Traffic) -> list[EpochRow]:
    known = traffic.known.epochs
    newest = max(known)
    return [
        EpochRow(
            epoch=epoch,
            roster=known.source(epoch),
            members=known.n_members(epoch),
            rotated=epoch < newest,
            messages=tally.messages,
            outsiders=tally.outsiders,
            updates=tally.updates,
            readable_updates=tally.readable_updates,
            readable_values=tally.readable_values,
        )
        for epoch, tally in sorted(traffic.epochs.items())
    ]


def _searched(secrets: Truth) -> dict[str, int]:
    searched = {
        "private vectors": len(secrets.vectors),
        MODEL: len(secrets.model),
        "histories": len(secrets.histories),
        "user ids": len(secrets.user_ids) - secrets.unsearched_ids,
    }
    return {what: count for what, count in searched.items() if count}


def _notes(traffic: Traffic, secrets: Truth, recordings: int) -> list[str]:
    notes = []
    if not recordings:
        notes.append("Nothing was recorded, so only the coordinator's folder was checked.")
    if traffic.limited:
        notes.append("A recording ended at its size limit. Later traffic was not checked.")
    if traffic.truncated:
        notes.append("A recording ends within a message, as when a coordinator was killed.")
    for epoch, tally in sorted(traffic.epochs.items()):
        if traffic.known.epochs.source(epoch) == "not given":
            notes.append(
                f"{tally.messages} messages name key epoch {epoch}, whose roster was not given. "
                "Their senders' membership and the context were therefore not checked. Give the "
                "authority's rosters with --epochs."
            )
    if secrets.unsearched_ids:
        notes.append(
            f"{secrets.unsearched_ids} user ids are short numbers, which occur by chance, so they "
            "were not searched for."
        )
    foreign = {method for method in (key.method for key in traffic.blobs) if method not in BLOBS}
    if foreign:
        notes.append("Some streams were cut before they were whole. The received part was checked.")
    return notes
