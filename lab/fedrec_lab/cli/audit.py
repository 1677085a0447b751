"""`fedrec audit`: what sums, noise, indices and the wire say about single users."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from fedrec.cli.flags import SettingsFile, SetValues, values_of
from fedrec.cli.terminal import (
    AsJson,
    count_of,
    human_bytes,
    new_console,
    print_json,
    print_table,
    printable,
)

if TYPE_CHECKING:
    from typer._click.core import Context

    from fedrec_lab.audit import AuditReport
    from fedrec_lab.audit.indices import IndexLeak
    from fedrec_lab.audit.wire import EpochRow, Finding, WireReport


DP_EPILOG = (
    "Examples:\n"
    "  fedrec audit dp run.toml\n"
    "  fedrec audit dp run.toml --trials 4000 --set privacy.epsilon=2 --json"
)


def audit_dp(
    settings_file: SettingsFile,
    trials: Annotated[
        int, typer.Option(min=100, max=100_000, help="Sums with the canary, and as many without.")
    ] = 1000,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Attack one round's noise as hard as its promise allows for, and compare.

    A canary user, whose whole contribution is one value that nobody else touches, is in the sum
    or not; the attacker looks at that value. How often the attacker is right bounds epsilon from
    below. A bound above the promise refutes it: the command ends with exit code 1. A bound below
    proves nothing. No data is read, nothing is started, sent or written.
    """
    from fedrec.settings.validation import load_settings
    from fedrec_lab.audit.dp import audit_noise

    settings = load_settings(settings_file, values_of(values))
    report = audit_noise(settings.plan, trials=trials)
    if as_json:
        print_json({"path": str(settings_file), "holds": report.holds, **asdict(report)})
    else:
        print_table(
            [
                (
                    f"{finding.delta:g}",
                    f"{finding.claimed:.3f}",
                    f"{finding.audited:.3f}",
                    "holds" if finding.holds else "REFUTED",
                )
                for finding in report.findings
            ],
            title=f"One noisy sum, {report.trials} times with a canary and as often without",
            headers=("delta", "epsilon promised", "epsilon at least", "verdict"),
        )
        typer.echo(
            f"\nThe attacked value, in clips: {report.present:.3f} with the canary, "
            f"{report.absent:.3f} without; noise {report.deviation:.3f}. All bounds together hold "
            f"with confidence {report.confidence:.0%}."
        )
    if not report.holds:
        raise typer.Exit(1)


def indices(
    settings_file: SettingsFile,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Training rounds to watch.")] = 5,
    users: Annotated[
        int, typer.Option(min=0, help="Measure so many users, evenly chosen; 0 for all.")
    ] = 0,
    figure: Annotated[Path | None, typer.Option(help="Write a figure (SVG) to this file.")] = None,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Measure what indices in the clear give away of users' histories.

    fedrec sends them only where update.indices is "clear": else a vector has its zeros, and nothing
    of an update's form depends on what a user touched. The papers' Top-K sends pairs of index and
    value, and others send only the rows that were touched. This trains every user of the data as a
    client of its own, takes the items of the rows that it would send as its history, and compares.
    Precision is the share of the guessed items that are the user's, recall the share of its items
    that are guessed; after several rounds those items are guessed that came in every one. What is
    found is a lower bound. Nothing is sent.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.extras import require
    from fedrec.settings.validation import load_settings
    from fedrec_lab.audit.indices import audit_indices

    require("torch", *(("matplotlib",) if figure is not None else ()))
    settings = load_settings(settings_file, values_of(values))
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
        figure.write_text(as_element(plot), encoding="utf-8")
    if as_json:
        print_json({"path": str(settings_file), **asdict(found)})
        return
    _print_indices(found)
    if figure is not None:
        typer.echo(f"\n{figure}")


def _print_indices(found: IndexLeak) -> None:
    verb = "send" if found.is_sent else "would send"
    typer.echo(f"In the clear, {count_of(found.n_users, 'user')} {verb} {found.sent}.")
    typer.echo(f"A guess at random is right for {found.chance:.1%} of its items.\n")
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
    print_table(rows, headers=headers)
    if not found.is_sent:
        typer.echo(
            "\nfedrec sends none of these indices: zeros travel with the rest of the vector."
        )
        return
    last = found.rounds[-1]
    typer.echo(
        f'\nupdate.indices = "clear": these indices travel, whatever encrypts the values. After '
        f"{count_of(last.rounds, 'round')} the coordinator knows {last.recall:.0%} of a history, "
        f"and {last.precision:.0%} of what it guesses is right."
    )


_SHOWN = 10


def sums(
    settings_file: SettingsFile,
    values: SetValues = None,
    as_json: AsJson = False,
) -> None:
    """Report the users whose data the sums of these settings would determine.

    Reads the data that the settings name as if its users were the whole federation: where other
    clients hold the same items, fewer are determined; to all other clients together, who can take
    their own part from the sums, these are. What is found is a lower bound: one inference is
    tried, and there are others. Nothing is started, sent or written.
    """
    from fedrec.cli.data_options import echo_note
    from fedrec.data.source import read_users
    from fedrec.settings.validation import load_settings
    from fedrec_lab.audit import audit

    settings = load_settings(settings_file, values_of(values))
    users, catalogue = read_users(settings.data, reader="an audit", tell=echo_note)
    report = audit(settings.plan, users, len(catalogue))
    if as_json:
        content = {
            "path": str(settings_file),
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
        }
        print_json(content)
        return
    _print_sums(report)


def _print_sums(report: AuditReport) -> None:
    typer.echo(f"Released: {report.released}.")
    typer.echo(f"Looked for: {report.inference}.")
    users = count_of(report.n_users, "user")
    typer.echo(f"\n{len(report.determined)} of {users} are determined, at least.")
    if report.determined:
        more = len(report.determined) - _SHOWN
        names = ", ".join(report.determined[:_SHOWN])
        typer.echo(f"  {names}{f' and {more} more; --json has all' if more > 0 else ''}")
    print_table([(str(finding.count), finding.sentence) for finding in report.findings])
    if report.determined:
        typer.echo(f"\nNow federation.minimum_item_users = {report.minimum_item_users}.")
        typer.echo(report.advice)


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
    from fedrec.settings.validation import load_settings
    from fedrec_lab.audit.wire import audit_wire

    settings = load_settings(settings_file, values_of(values))
    report = audit_wire(settings, recording=recording, truth=truth or (), epochs=epochs or ())
    if as_json:
        print_json({"path": str(settings_file), **report.to_json()})
    else:
        _print_wire(report, fields=fields)
    if not report.holds:
        raise typer.Exit(BROKEN)


def _print_wire(report: WireReport, *, fields: bool) -> None:
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


_SHORTHAND = "sums"


class _AuditGroup(TyperGroup):
    """Takes `fedrec audit SETTINGS` as `fedrec audit sums SETTINGS`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put the shorthand's word before what names no audit."""
        named = [*self.list_commands(ctx), *ctx.help_option_names]
        if args and args[0] not in named:
            args = [_SHORTHAND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_AuditGroup,
    no_args_is_help=True,
    help="Report what the released sums would determine (sums), what a coordinator could read of "
    "its traffic and its folder (wire), and what indices in the clear would leak (indices).\n\n"
    "Before a run: sums and indices, where the data is. After it: wire, where the coordinator "
    "ran. `fedrec audit SETTINGS` is short for `fedrec audit sums SETTINGS`.",
    epilog=(
        "Examples:\n"
        "  fedrec audit sums run.toml\n"
        "  fedrec audit wire coordinator.toml --recording recording\n"
        "  fedrec audit indices run.toml --figure leak.svg"
    ),
)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec audit sums run.toml\n"
        "  fedrec audit sums run.toml --set federation.minimum_item_users=20 --json"
    )
)(sums)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec coordinator run coordinator.toml --record-wire recording\n"
        "  fedrec audit wire coordinator.toml --recording recording\n"
        "  fedrec audit wire coordinator.toml --recording recording --truth clients/1 --json"
    )
)(wire)
app.command(
    epilog=(
        "Examples:\n"
        "  fedrec audit indices run.toml\n"
        "  fedrec audit indices run.toml --set update.structure=topk --set update.ratio=0.05 "
        "--rounds 5 --figure leak.svg"
    )
)(indices)
app.command("dp", epilog=DP_EPILOG)(audit_dp)
