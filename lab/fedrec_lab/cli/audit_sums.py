"""`fedrec audit sums`: which users the sums of a plan would determine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedrec.cli.flags import SettingsFile, SetValues, values_of
from fedrec.cli.terminal import AsJson, count_of, print_json, print_table

if TYPE_CHECKING:
    from fedrec_lab.audit import AuditReport

__all__ = ["sums"]

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
    from fedrec.config.loading import load_settings
    from fedrec.data.source import read_users
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
    _print(report)


def _print(report: AuditReport) -> None:
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
