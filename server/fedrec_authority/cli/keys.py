"""`fedrec keys`: the data owners' side of a federation's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.terminal import Result, TextTable, count_of
from fedrec_authority.cli import cells, roster, running
from fedrec_authority.cli.roster import AUTHORITY_FOLDER, KeysFolder

PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="File with the passphrase in its first line. Without it, the command asks."),
]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to create.")],
    into: KeysFolder = AUTHORITY_FOLDER,
    passphrase_file: PassphraseFile = None,
) -> Result:
    """Write the authority's key, members and rosters into one encrypted file.

    Make a backup after every change of membership, and keep it and the passphrase apart.
    """
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.backup import back_up

    passphrase = _passphrase(passphrase_file, confirm=True)
    epoch = back_up(AuthorityFolder(into), file, passphrase)
    sentence = f"Wrote {file}, encrypted with the passphrase. The last epoch is {epoch}."
    return Result(content={"file": str(file), "epoch": epoch}, text=(sentence,))


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from `fedrec keys backup`.")],
    into: KeysFolder = AUTHORITY_FOLDER,
    passphrase_file: PassphraseFile = None,
) -> Result:
    """Restore an authority's folder, on this or another machine. Then check the list of members."""
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.backup import restore as restore_folder

    passphrase = _passphrase(passphrase_file, confirm=False)
    folder = AuthorityFolder(into)
    epoch = restore_folder(file, folder, passphrase)
    members = len(folder.membership.present)
    return Result(
        content={"folder": str(into), "epoch": epoch, "members": members},
        text=(
            f"Restored {into}: epoch {epoch}, {count_of(members, 'member')}.",
            "Compare `fedrec keys roster list` with the actual members: a client that was",
            "removed after the backup is still in it. Then run `fedrec keys rotate`.",
        ),
    )


def export_recovery(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to create.")],
    into: KeysFolder = AUTHORITY_FOLDER,
) -> Result:
    """Write the file from which a coordinator recovers if its folder is lost or outdated.

    The authority may be running. Give the file to the coordinator's operator, to run `fedrec
    coordinator recover`. The model in it is only readable with a member's keys.
    """
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.recovery import write_recovery

    found = write_recovery(AuthorityFolder(into), file)
    round_id = 0 if found.statement is None else found.statement.round
    return Result(
        content={"file": str(file), "run": found.run, "round": round_id},
        text=(
            f"Wrote {file}: run {found.run} up to round {round_id}. On the machine of",
            "the coordinator: fedrec coordinator recover SETTINGS.toml FILE",
        ),
    )


def _passphrase(path: Path | None, *, confirm: bool) -> str:
    from fedrec.errors import SettingsError

    if path is None:
        return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm))
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"--passphrase-file: {path} cannot be read: {error}.", remedy="Check the path."
        ) from None


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
app.command()(backup)
app.command()(restore)
app.command("export-recovery")(export_recovery)


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
