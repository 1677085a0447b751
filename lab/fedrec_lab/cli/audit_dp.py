"""`fedrec audit dp`: attack the noise of a plan with a canary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedrec.cli.flags import SettingsFile, SetValues, values_of
from fedrec.cli.terminal import AsJson, print_json, print_table

__all__ = ["EPILOG", "audit_dp"]

EPILOG = (
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
    from fedrec.config.loading import load_settings
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
