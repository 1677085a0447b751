"""`fedrec keys`: the data owners' side of a federation's keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import AsJson, print_json, print_table

if TYPE_CHECKING:
    from fedrec.config.schema import Plan
    from fedrec.identity.authority import Authority
    from fedrec.identity.epoch import KeyEpoch
    from fedrec.identity.public import PublicIdentity

__all__ = ["AUTHORITY_FOLDER", "AUTHORITY_PUBLIC_FILE", "EPOCH_FILE", "app"]

AUTHORITY_FOLDER = "authority"
AUTHORITY_PUBLIC_FILE = "authority.pub.json"
EPOCH_FILE = "epoch.json"
TOKEN_BYTES = 32

app = typer.Typer(
    help="Make the data owners' keys and show what is in key files.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec keys identity client-1/state --label hospital-a\n"
        "  fedrec keys new run.toml --client a.pub.json --client b.pub.json --into keys\n"
        "  fedrec keys show keys/epoch.json\n"
        "  fedrec keys token keys/clients.token"
    ),
)


@app.command()
def new(
    settings_file: Annotated[
        Path, typer.Argument(metavar="SETTINGS", help="The federation's settings.")
    ],
    client: Annotated[
        list[Path], typer.Option(help="A member's identity.pub.json; once for each member.")
    ],
    into: Annotated[Path, typer.Option(help="Folder of the keys.")] = Path("keys"),
    epoch: Annotated[
        int, typer.Option(min=0, help="Number of the epoch; 0 takes the one after the last.")
    ] = 0,
    items: Annotated[
        int, typer.Option(min=0, help="Size of the catalogue, if no file says it.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Make an epoch's secrets and sign who belongs to it, where the data owners trust the machine.

    The first call makes the authority's key; keep its folder from the coordinator and keep a
    copy. Give authority.pub.json to every client and epoch.json to the coordinator. Secrets are
    wrapped to each member. Run it again when somebody joins or leaves.
    """
    from fedrec.cli.catalogue_size import catalogue_size
    from fedrec.config.loading import load_settings
    from fedrec.identity.authority_key import write_authority_key
    from fedrec.identity.public import PublicIdentity
    from fedrec.training.key_epochs import make_epoch

    settings = load_settings(settings_file)
    n_items, _ = catalogue_size(settings, items)
    members = [PublicIdentity.load(path) for path in client]
    _check_membership(settings.plan, members)
    number = _epoch_number(into / EPOCH_FILE, settings.plan.federation.name, epoch)
    authority, is_new = _load_or_create(into)
    made = make_epoch(authority, settings.plan, n_items, members, number=number)
    write_authority_key(into / AUTHORITY_PUBLIC_FILE, authority.public_key)
    made.save(into / EPOCH_FILE)
    content = _epoch_content(made) | {
        "authority_is_new": is_new,
        "authority_folder": str(into / AUTHORITY_FOLDER),
        "authority_public": str(into / AUTHORITY_PUBLIC_FILE),
        "epoch_file": str(into / EPOCH_FILE),
    }
    if as_json:
        print_json(content)
        return
    if is_new:
        typer.echo(f"Made the authority's key in {into / AUTHORITY_FOLDER}: keep it and a copy.")
    _print_epoch(made)
    typer.echo(f"Give {into / AUTHORITY_PUBLIC_FILE} to every client (client.authority_key).")
    typer.echo(f"Give {into / EPOCH_FILE} to the coordinator (coordinator.epoch).")


@app.command()
def identity(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The client's state folder.")],
    label: Annotated[str, typer.Option(help="A name for people to read.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a client's keys in its folder, or show the public half of those it has."""
    from fedrec.identity.identity import PUBLIC_FILE, Identity

    public = Identity.load_or_create(folder, label).public
    path = folder / PUBLIC_FILE
    if as_json:
        content = {"client_id": public.client_id, "label": public.label}
        print_json(content | {"public_identity": str(path)})
        return
    typer.echo(f"client id {public.client_id}")
    typer.echo(f"Give {path} to the key authority; compare the id by telephone.")


@app.command()
def token(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to make.")],
    as_json: AsJson = False,
) -> None:
    """Make an access token for callers of the coordinator; an existing file is kept."""
    import secrets

    from fedrec.identity.key_files import write_secret

    write_secret(path, f"{secrets.token_hex(TOKEN_BYTES)}\n".encode())
    if as_json:
        print_json({"path": str(path)})
        return
    typer.echo(f"Wrote {path}, readable by you only.")


@app.command()
def certificate(
    host: Annotated[
        list[str], typer.Option(help="A name or address that clients call; may be repeated.")
    ],
    into: Annotated[Path, typer.Option(help="Folder of the certificate and its key.")] = Path(
        "keys"
    ),
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make a self-signed TLS certificate for the coordinator; clients pin it.

    For coordinators without a certificate of a public or company authority.
    """
    from datetime import UTC, datetime

    from fedrec.identity.certificates import PRIVATE_KEY_FILE, write_certificate

    path = write_certificate(into, host, days=days, now=datetime.now(UTC))
    if as_json:
        print_json({"certificate": str(path), "private_key": str(into / PRIVATE_KEY_FILE)})
        return
    typer.echo(f"Wrote {path} and {into / PRIVATE_KEY_FILE}.")
    typer.echo("Coordinator: coordinator.certificate and coordinator.private_key.")
    typer.echo(f"Clients: a copy of {path.name} as client.root_certificate.")


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A key file, or a folder of key files.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show roster, epoch and fingerprints in key files; never a secret."""
    from fedrec.cli.key_contents import describe_keys

    found = describe_keys(path)
    if as_json:
        print_json({"files": found})
        return
    for number, content in enumerate(found):
        rows = [(name.replace("_", " "), _shown(value)) for name, value in content.items()]
        print_table(rows[1:], title=("\n" if number else "") + _shown(content["path"]))


def _load_or_create(keys: Path) -> tuple[Authority, bool]:
    """Return the authority whose key is here; a new one only where no other was before."""
    from fedrec.errors import KeysError
    from fedrec.identity.authority import AUTHORITY_FILE, Authority
    from fedrec.identity.authority_key import read_authority_key

    folder, public = keys / AUTHORITY_FOLDER, keys / AUTHORITY_PUBLIC_FILE
    pinned = read_authority_key(public) if public.exists() else b""
    is_new = not (folder / AUTHORITY_FILE).exists()
    if is_new and not pinned:
        made = Authority.create()
        made.save(folder)
        return made, True
    found = None if is_new else Authority.load(folder)
    if found is None or (pinned and found.public_key != pinned):
        raise KeysError(
            f"{public} is of an authority whose private key is not in {folder}; clients that "
            "pinned it would refuse an epoch of another one.",
            remedy="Restore the folder from a copy, or start anew with another --into and give "
            "every client the new authority.pub.json.",
        )
    return found, False


def _check_membership(plan: Plan, members: list[PublicIdentity]) -> None:
    from fedrec.errors import KeysError

    needed, n_clients = plan.rounds.minimum_clients, len({m.client_id for m in members})
    if n_clients < len(members):
        raise KeysError(
            f"The {len(members)} identities are of {n_clients} clients: one is given twice.",
            remedy="Give --client once for each member.",
        )
    if n_clients < needed:
        raise KeysError(
            f"Identities given: {n_clients}; rounds.minimum_clients is {needed}, so that no round "
            "could be published.",
            remedy="Give --client once for each member, or lower rounds.minimum_clients.",
        )


def _epoch_number(path: Path, federation: str, wanted: int) -> int:
    """Return the number of the new epoch, which must be above that of the last."""
    from fedrec.errors import KeysError
    from fedrec.identity.epoch import KeyEpoch

    if not path.exists():
        return wanted or 1
    last = KeyEpoch.load(path).roster
    if last.federation != federation:
        raise KeysError(
            f"{path} belongs to the federation {last.federation!r}, the settings to "
            f"{federation!r}.",
            remedy="Choose another folder with --into.",
        )
    if wanted and wanted <= last.epoch:
        raise KeysError(
            f"Epoch {wanted} was asked for, but {path} is epoch {last.epoch} already.",
            remedy=f"Ask for epoch {last.epoch + 1} or leave --epoch out.",
        )
    return wanted or last.epoch + 1


def _epoch_content(epoch: KeyEpoch) -> dict[str, object]:
    from fedrec.cli.key_contents import describe_roster

    return describe_roster(epoch.roster)


def _print_epoch(epoch: KeyEpoch) -> None:
    content = _epoch_content(epoch)
    print_table([(name.replace("_", " "), _shown(value)) for name, value in content.items()])


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(
            "  ".join(str(part) for part in row.values() if part) if isinstance(row, dict) else row
            for row in value
        )
    return str(value)
