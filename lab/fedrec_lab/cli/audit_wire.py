"""`fedrec audit wire`: what a coordinator could read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import SetValues, values_of
from fedrec.cli.terminal import AsJson, human_bytes, print_json, print_table, printable

if TYPE_CHECKING:
    from fedrec_lab.audit.wire import EpochRow, Finding, WireReport

__all__ = ["BROKEN", "wire"]

BROKEN = 1
"""The exit code of an audit that found a broken promise: the run failed its audit."""


def wire(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS", help="The coordinator's settings.")
    ],
    recording: Annotated[
        Path | None,
        typer.Option(help="What `fedrec coordinator run --record-wire` wrote: a folder or a file."),
    ] = None,
    truth: Annotated[
        list[Path] | None,
        typer.Option(help="A client's folder, whose content is searched for; repeat it."),
    ] = None,
    epochs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Rosters of key epochs that rotated away: keys/authority/rosters; repeat it."
        ),
    ] = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="Print a row for every field and column.")
    ] = False,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Report what a coordinator could read of its traffic and its folder.

    Every field of every recorded message, every stream, every column of the database and every
    file is held against one table of what may be there, with what the threat model promises of
    it. Updates and sums are tried with everything that the coordinator has: decoded as if nothing
    protected them, searched for zeros, equal bytes and structure. With --truth the data owners
    lend what they know, and private vectors, histories and user ids are searched for.

    Every message is held against the key epoch that it names. Rosters are taken from the
    coordinator's folder, from what was recorded, and from --epochs; no epoch's secrets are needed.

    Ends with exit code 1 when a promise is broken. Nothing is sent or written.
    """
    from fedrec.config.loading import load_settings
    from fedrec_lab.audit.wire import audit_wire

    settings = load_settings(settings_file, values_of(values))
    report = audit_wire(settings, recording=recording, truth=truth or (), epochs=epochs or ())
    if as_json:
        print_json({"path": str(settings_file), **report.to_json()})
    else:
        _print(report, fields=fields)
    if not report.holds:
        raise typer.Exit(BROKEN)


def _print(report: WireReport, *, fields: bool) -> None:
    headers = (
        "where", "what", "kind", "values", "bytes", "different", "lengths", "found", "promise",
    )  # fmt: skip
    title = f"What the coordinator saw, protection {report.protection}"
    shown = [finding for finding in report.findings if fields or _is_shown(finding)]
    print_table(map(_row, shown), title=title, headers=headers)
    if not fields:
        print_table(
            _by_kind(report.findings),
            title="\nAll fields, columns and files by kind (--fields shows each)",
            headers=("kind", "fields", "values", "bytes", "broken", "promise"),
        )
    if len(report.epochs) > 1:
        print_table(
            map(_epoch_row, report.epochs),
            title="\nBy key epoch",
            headers=("epoch", "roster", "members", "messages", "outsiders", "updates", "readable"),
        )
    if report.clients:
        clients = [
            (
                str(printable(row.client_id))[:16] or "operators and strangers",
                f"{row.calls:,}",
                human_bytes(row.sent),
                human_bytes(row.received),
                str(row.updates),
                str(row.readable_updates),
            )
            for row in report.clients
        ]
        print_table(
            clients,
            title="\nBy client",
            headers=("client", "calls", "sent", "received", "updates", "readable"),
        )
    typer.echo("")
    for sentence in report.sentences():
        typer.echo(printable(sentence))


def _is_shown(finding: Finding) -> bool:
    """Streams and files of content, and whatever broke a promise."""
    return (
        bool(finding.problems)
        or finding.name.endswith("its stream")
        or (finding.name.startswith("files: ") and finding.kind != "bookkeeping")
    )


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.where,
        str(printable(finding.name)),
        finding.kind,
        f"{finding.messages:,}",
        human_bytes(finding.n_bytes),
        f"{finding.distinct:,}",
        finding.lengths,
        finding.verdict,
        "BROKEN" if finding.problems else finding.promise,
    )


def _epoch_row(row: EpochRow) -> tuple[str, ...]:
    rotated = " (rotated)" if row.rotated else ""
    return (
        f"{row.epoch}{rotated}",
        row.roster,
        str(row.members) if row.members else "",
        f"{row.messages:,}",
        str(row.outsiders),
        str(row.updates),
        str(row.readable_updates),
    )


def _by_kind(findings: tuple[Finding, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in sorted({finding.kind for finding in findings}):
        own = [finding for finding in findings if finding.kind == kind]
        rows.append(
            (
                kind,
                str(len(own)),
                f"{sum(finding.messages for finding in own):,}",
                human_bytes(sum(finding.n_bytes for finding in own)),
                str(sum(bool(finding.problems) for finding in own)),
                own[0].promise,
            )
        )
    return rows
