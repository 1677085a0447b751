"""`fedrec keys`: the data owners' side of a federation's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.terminal import Result, TextTable
from fedrec_authority.cli import backup, cells, roster, running

app = typer.Typer(
    help="Manage the data owners' keys: members, epochs and key files.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n  fedrec keys roster admit 9f86d081884c7d65\n  fedrec keys show kits/authority"
    ),
)


app.add_typer(roster.app, name="roster")
roster.app.command("list")(cells.list_members)
roster.app.command("cells")(cells.sizes)
roster.app.command()(cells.resume)
app.command()(roster.rotate)
app.command("replace")(roster.replace_member)
app.add_typer(running.app, name="authority")
app.command()(backup.backup)
app.command()(backup.restore)
app.command("export-recovery")(backup.export_recovery)


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A key file, or a folder of key files.")
    ],
) -> Result:
    """Show roster, epoch and fingerprints in key files, but no secret."""
    from fedrec_authority.cli.key_contents import describe_keys

    found = describe_keys(path)
    tables = [
        TextTable(
            rows=[(name.replace("_", " "), _shown(value)) for name, value in content.items()][1:],
            title=("\n" if number else "") + _shown(content["path"]),
        )
        for number, content in enumerate(found)
    ]
    return Result(content={"files": found}, text=tables)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(
            "  ".join(str(part) for part in row.values() if part) if isinstance(row, dict) else row
            for row in value
        )
    return str(value)
