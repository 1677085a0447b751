"""`fedrec keys backup` and `restore`: the authority's folder as one encrypted file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.cli.terminal import Result, count_of
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
    said = f"Wrote {file}, encrypted with the passphrase. The last epoch is {epoch}."
    return Result(content={"file": str(file), "epoch": epoch}, text=(said,))


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
