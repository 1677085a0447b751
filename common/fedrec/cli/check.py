"""`fedrec check`: resolve, explain and price settings before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.flags import AcceptExposure, CellsOf, SetValues, values_of
from fedrec.cli.terminal import Result

EPILOG = (
    "Examples:\n"
    "  fedrec check run.toml\n"
    "  fedrec check run.toml --items 50000 --clients 20 --json\n"
    "  fedrec check run.toml --sizing --clients 20\n"
    "  fedrec check --explain\n"
    "  fedrec check --upgrade kits\n"
    "  fedrec check --explain rounds.total\n"
    "  FEDREC_ROUNDS__TOTAL=10 fedrec check run.toml --set update.rank=8"
)


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SETTINGS",
            help="The settings file, a key with --explain, or a folder with --upgrade.",
        ),
    ] = "",
    items: Annotated[
        int, typer.Option(min=0, help="Size of the catalogue, if no file gives it.")
    ] = 0,
    clients: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of clients per round for the cost estimate, which divides the data among "
            "them. If 0, uses the plan's number and assumes that the data is one client's.",
        ),
    ] = 0,
    cells: CellsOf = "",
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain a setting, a section or all settings.")
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Report what this release would do with a folder of an earlier one: a kit, a "
            "state, keys or runs.",
        ),
    ] = False,
    sizing: Annotated[
        bool,
        typer.Option(
            "--sizing",
            help="Show the memory, disk, bytes and processor time that each party needs, and "
            "nothing else.",
        ),
    ] = False,
    accept_exposure: AcceptExposure = False,
    values: SetValues = None,
) -> Result:
    """Check settings, show where each value comes from, and price the run.

    The command fails with the same error as `fedrec simulate` if `simulate` would refuse the
    settings. With --clients, it also fails if the protection can't add up that many updates, as
    `simulate --protect` does. A client's own settings (client.invitation or client.certificate)
    cover one party's data only. Conditions on all parties' data are then warnings.

    A flag overrides the environment (FEDREC_SECTION__FIELD), which overrides the file, which
    overrides the default. The data at data.path is read if it is on this machine. Nothing is
    started or written.
    """
    if explain:
        return _explain("" if Path(target).is_file() else target)
    if upgrade:
        from fedrec.cli.upgrading import upgraded

        return upgraded(Path(target))
    from fedrec.cli.checked import CheckedSettings
    from fedrec.errors import SettingsError
    from fedrec.settings.validation import load_with_sources

    if not target:
        raise SettingsError(
            "No settings file was given.",
            remedy="Run `fedrec check run.toml`. `fedrec init` writes such a file.",
        )
    loaded = load_with_sources(Path(target), values_of(values))
    found = CheckedSettings(
        loaded, n_items=items, n_clients=clients, cells=cells, accept_exposure=accept_exposure
    )
    return Result(
        content={"path": target, **found.content()},
        text=found.sizing_text() if sizing else found.text(),
        failure=found.refusals[0] if found.refusals else None,
    )


def _explain(key: str) -> Result:
    from fedrec.section import Section
    from fedrec.settings.explain import explain

    found = explain(key)
    settings, lines = [], []
    for setting in found:
        default = setting.default
        settings.append(
            {
                "key": setting.key,
                "default": default.model_dump(mode="json")
                if isinstance(default, Section)
                else setting.default_in_words or default,
                "allowed": setting.allowed,
                "meaning": setting.sentence,
                "environment": setting.environment,
                "in_plan": setting.in_plan,
                "algorithm": setting.owner if setting.section == "algorithm" else "",
                "protection": setting.owner if setting.section == "protection" else "",
            }
        )
        scope = "plan" if setting.in_plan else "local"
        scope += f", {setting.owner}" if setting.owner else ""
        lines += [
            f"{setting.key} ({scope})",
            f"  {setting.sentence}",
            f"  {setting.allowed}; default {setting.shown_default}",
            f"  environment {setting.environment}",
        ]
    return Result(content={"settings": settings}, text=lines)
