"""`fedrec audit`: what sums, noise, indices and the wire reveal about single users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.flags import SetValues, values_of
from fedrec.cli.terminal import (
    Result,
    TextTable,
    count_of,
    human_bytes,
    new_console,
    printable,
)

if TYPE_CHECKING:
    from fedrec.settings.schema import Settings
    from fedrec_lab.audit import AuditReport
    from fedrec_lab.audit.indices import IndexLeak
    from fedrec_lab.audit.wire import EpochRow, Finding, WireReport

_SHOWN = 10
BROKEN = 1
"""The exit code of an audit that found a broken promise: the run failed its audit."""

_EPILOG = (
    "Examples:\n"
    "  fedrec audit run.toml\n"
    "  fedrec audit runs/movies-20260101-120000\n"
    "  fedrec audit run.toml --only indices --figure leak.svg\n"
    "  fedrec audit coordinator.toml --recording recording --truth clients/1 --json"
)


app = typer.Typer(add_completion=False)


@app.command(epilog=_EPILOG)
def audit(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="SETTINGS|RUN", help="Settings of a run or of its coordinator, or a run folder."
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="sums|dp|indices|wire", help="Run only this audit. Repeatable."),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(help="The folder or file that `fedrec coordinator run --record-wire` wrote."),
    ] = None,
    truth: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="wire: a client's folder, to search for its content. Repeatable."
        ),
    ] = None,
    epochs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="wire: rosters of past key epochs, as in keys/authority/rosters. Repeatable.",
        ),
    ] = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="wire: a row for every field and column.")
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="indices: training rounds to watch.")
    ] = 5,
    users: Annotated[
        int, typer.Option(min=0, help="indices: number of users, evenly chosen. If 0, uses all.")
    ] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="indices: write a figure (SVG) to this file.")
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            min=100,
            max=100_000,
            help="dp: number of releases with the canary, and the same number without.",
        ),
    ] = 1000,
    values: SetValues = None,
) -> Result:
    """Report what sums would determine, what a coordinator could read, and which data leak.

    Runs every audit that applies, or those of --only. Before a run, give its settings, on the
    machine with the data. After it, give the coordinator's settings, on the coordinator's machine.
    Nothing is sent, and nothing but the figure is written. Exits with code 1 if a promise is
    broken.

    sums (if the settings name data): the users whose data the sums would determine, as if the
    data's users were the whole federation. The sums determine them for all other clients together,
    which can subtract their own part. The result is a lower bound: one inference is tried.

    dp (if sums are noisy): attacks one round's noise as hard as its promise allows. A canary user
    is in the sum or not. Its whole contribution is one value that no other user touches. If all
    sums are parts of one release, all parts are attacked together, and the canary's contribution is
    a client's. The attacker's success rate bounds epsilon from below. A bound above the promise
    refutes it.

    indices (if update.indices is "clear", or on demand): what indices in the clear reveal of users'
    histories. This trains every user as a separate client, guesses that the items of the sent rows
    are its history, and compares. After several rounds, it guesses the items that occurred in every
    one.

    wire (with --recording, or if the coordinator's state folder is there): compares every field,
    stream, column and file with one table of the allowed ones. Updates and sums are decoded as if
    unprotected, and searched for zeros, equal bytes and structure. With --truth, the data owners
    lend their knowledge, and private vectors, histories and user ids are searched for.
    """
    from fedrec.errors import SettingsError
    from fedrec.settings.validation import load_settings

    path = target / "resolved.toml" if target.is_dir() else target
    settings = load_settings(path, values_of(values))
    own, plan = settings.coordinator, settings.plan
    has_data = settings.data.path is not None
    parts: dict[str, tuple[bool, Callable[[], Result]]] = {
        "sums": (has_data, lambda: _sums(settings)),
        "dp": (plan.privacy.mechanism != "none", lambda: _noise(settings, trials)),
        "indices": (
            figure is not None or (has_data and plan.update.indices == "clear"),
            lambda: _indices(settings, rounds, users, figure),
        ),
        "wire": (
            bool(recording or truth or epochs or (own.epoch and Path(own.state).is_dir())),
            lambda: _wire(settings, recording, truth or [], epochs or [], fields),
        ),
    }
    if unknown := set(only or ()) - set(parts):
        raise SettingsError(
            f"--only names {unknown.pop()}, which is not an audit.",
            remedy=f"Choose from {', '.join(parts)}.",
        )
    # Without data, the audit of sums reports what is missing.
    chosen = only or [name for name, (applies, _) in parts.items() if applies] or ["sums"]
    found = {name: parts[name][1]() for name in parts if name in chosen}
    return Result(
        content={"path": str(target)} | {name: part.content for name, part in found.items()},
        text=_one_after_the_other(found),
        exit_code=max(part.exit_code for part in found.values()),
    )


def _one_after_the_other(found: dict[str, Result]) -> Iterator[str | TextTable]:
    for number, part in enumerate(found.values()):
        if number:
            yield ""
        yield from part.text


_GAUSSIAN_ONLY = (
    "They assume that the noise is Gaussian, as it is planned. Noise of another shape could give "
    "away more than they show."
)


def _noise(settings: Settings, trials: int) -> Result:
    from fedrec_lab.audit.dp import audit_noise

    report = audit_noise(settings.plan, trials=trials)
    parts = count_of(report.parts, "part")
    attacked = f"A release of {parts}" if report.parts > 1 else "One noisy sum"
    rows = [
        (
            f"{finding.delta:g}",
            f"{finding.claimed:.3f}",
            f"{finding.audited:.3f}",
            "holds" if finding.holds else "REFUTED",
        )
        for finding in report.findings
    ]
    return Result(
        content={"holds": report.holds, **asdict(report)},
        text=(
            TextTable(
                rows=rows,
                title=f"{attacked}, {report.trials} times with a canary and as often without",
                headers=("delta", "epsilon promised", "epsilon at least", "verdict"),
            ),
            f"\nThe attacked value, in clips: {report.present:.3f} with the canary, "
            f"{report.absent:.3f} without. The noise is {report.deviation:.3f}. All bounds "
            f"together hold with confidence {report.confidence:.0%}.",
            *((_GAUSSIAN_ONLY,) if report.assumes_gaussian else ()),
        ),
        exit_code=0 if report.holds else BROKEN,
    )


def _indices(settings: Settings, rounds: int, users: int, figure: Path | None) -> Result:
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.durable import require_writable, write_whole
    from fedrec.extras import require
    from fedrec_lab.audit.indices import audit_indices

    require("torch", *(("matplotlib",) if figure is not None else ()))
    if figure is not None:
        require_writable(figure.parent, "--figure")
    split, catalogue = read_users(settings.data, reader="an audit", tell=echo_note)
    console = new_console(stderr=True)

    def tell(number: int) -> None:
        console.print(f"round {number} of {rounds}")

    found = audit_indices(
        settings.plan, split, len(catalogue), n_rounds=rounds, most_users=users, on_round=tell
    )
    if figure is not None:
        from fedrec_lab.reports.drawing import as_element
        from fedrec_lab.reports.figures import leak_by_round

        plot = leak_by_round(found.rounds, chance=found.chance)
        write_whole(figure, as_element(plot).encode(), private=False)
    return Result(content=asdict(found), text=_text_of_indices(found, figure))


def _text_of_indices(found: IndexLeak, figure: Path | None) -> Iterator[str | TextTable]:
    verb = "send" if found.is_sent else "would send"
    yield f"In the clear, {count_of(found.n_users, 'user')} {verb} {found.sent}."
    yield f"A random guess is right for {found.chance:.1%} of its items.\n"
    rows = [
        (
            str(row.rounds),
            f"{row.precision:.1%}",
            f"{row.recall:.1%}",
            f"{row.guessed:.1f}",
            f"{row.known_users} of {found.n_users}",
        )
        for row in found.rounds
    ]
    headers = ("rounds", "precision", "recall", "items guessed", "both at least 90 %")
    yield TextTable(rows=rows, headers=headers)
    if not found.is_sent:
        yield "\nfedrec sends none of these indices: zeros travel with the rest of the vector."
    else:
        last = found.rounds[-1]
        yield (
            '\nupdate.indices = "clear": these indices travel, whatever encrypts the values. '
            f"After {count_of(last.rounds, 'round')} the coordinator knows {last.recall:.0%} of a "
            f"history, and {last.precision:.0%} of its guesses are right."
        )
    if figure is not None:
        yield f"\n{figure}"


def _sums(settings: Settings) -> Result:
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.plan.exposure import exposure_of
    from fedrec_lab.audit import audit as audit_sums

    users, catalogue = read_users(settings.data, reader="an audit", tell=echo_note)
    report = audit_sums(settings.plan, users, len(catalogue))
    content = {
        "algorithm": settings.algorithm.name,
        "released": report.released,
        "inference": report.inference,
        "users": report.n_users,
        "items": report.n_items,
        "active_items": report.n_active,
        "minimum_item_users": report.minimum_item_users,
        "determined": list(report.determined),
        "findings": {finding.key: finding.count for finding in report.findings},
        "advice": report.advice,
        "exposed": exposure_of(settings.plan),
    }
    return Result(content=content, text=_text_of_sums(report, exposure_of(settings.plan)))


def _text_of_sums(report: AuditReport, exposed: str) -> Iterator[str | TextTable]:
    if exposed:
        yield f"Besides sums, the coordinator reads {exposed}.\n"
    yield f"Released: {report.released}."
    yield f"Looked for: {report.inference}."
    users = count_of(report.n_users, "user")
    yield f"\nAt least {len(report.determined)} of {users} are determined."
    if report.determined:
        more = len(report.determined) - _SHOWN
        names = ", ".join(report.determined[:_SHOWN])
        yield f"  {names}{f' and {more} more (--json has all)' if more > 0 else ''}"
    yield TextTable(rows=[(str(finding.count), finding.sentence) for finding in report.findings])
    if report.determined:
        yield f"\nNow federation.minimum_item_users = {report.minimum_item_users}."
        yield report.advice


def _wire(
    settings: Settings, recording: Path | None, truth: list[Path], epochs: list[Path], fields: bool
) -> Result:
    from fedrec_lab.audit.wire import audit_wire

    report = audit_wire(settings, recording=recording, truth=truth, epochs=epochs)
    return Result(
        content=report.to_json(),
        text=_text_of_wire(report, fields=fields),
        exit_code=0 if report.holds else BROKEN,
    )


def _text_of_wire(report: WireReport, *, fields: bool) -> Iterator[str | TextTable]:
    headers = (
        "where", "what", "kind", "values", "bytes", "different", "lengths", "found", "promise",
    )  # fmt: skip
    title = f"The coordinator's view, protection {report.protection}"
    shown = [finding for finding in report.findings if fields or _is_shown(finding)]
    yield TextTable(rows=map(_row, shown), title=title, headers=headers)
    if not fields:
        yield TextTable(
            rows=_by_kind(report.findings),
            title="\nAll fields, columns and files by kind (--fields shows each)",
            headers=("kind", "fields", "values", "bytes", "broken", "promise"),
        )
    if len(report.epochs) > 1:
        yield TextTable(
            rows=map(_epoch_row, report.epochs),
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
        yield TextTable(
            rows=clients,
            title="\nBy client",
            headers=("client", "calls", "sent", "received", "updates", "readable"),
        )
    yield ""
    for sentence in report.sentences():
        yield str(printable(sentence))


def _is_shown(finding: Finding) -> bool:
    """Return whether to show it: streams and files of content, and broken promises."""
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
