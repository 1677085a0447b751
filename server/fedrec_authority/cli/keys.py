"""`fedrec keys`: the data owners' side of a federation's keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import AsJson, print_json, print_table
from fedrec_authority.cli import backup, cells, roster, running

if TYPE_CHECKING:
    from fedrec.config.schema import Plan
    from fedrec.identity.epoch import KeyEpoch
    from fedrec.identity.public import PublicIdentity

__all__ = ["app"]

app = typer.Typer(
    help="Make the data owners' keys and show what is in key files.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec keys identity client-1/state --label hospital-a\n"
        "  fedrec keys new run.toml --client a.pub.json --client b.pub.json --into keys\n"
        "  fedrec keys invite hospital-d\n"
        "  fedrec keys roster admit 9f86d081884c7d65\n"
        "  fedrec keys show keys/epoch.json"
    ),
)


app.add_typer(roster.app, name="roster")
roster.app.command("list")(cells.list_members)
roster.app.command("cells")(cells.sizes)
roster.app.command()(cells.resume)
app.command()(roster.rotate)
app.command("replace")(roster.replace_member)
app.command()(roster.invite)
app.add_typer(running.app, name="authority")
app.command()(backup.backup)
app.command()(backup.restore)


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
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name or address at which clients call the coordinator; that of "
            "client.coordinator is known."
        ),
    ] = None,
    cell_size: Annotated[
        int,
        typer.Option(
            min=0,
            help="Members whom every opened sum keeps together, for good; 0 takes the larger of 3 "
            "and rounds.minimum_summands.",
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Make an epoch's secrets and sign who belongs to it, where the data owners trust the machine.

    The first call makes the authority's keys, and the coordinator's and an operator's; keep the
    folder from the coordinator and keep a copy. Give authority.pub.json and its own certificate to
    every client; epoch.json, coordinator.pem and operator.crt to the coordinator. Secrets are
    wrapped to each member; where protection.key_holder is "authority" the one that opens sums is
    not, and stays here. Afterwards `fedrec keys roster` adds and removes members one by one;
    running this again makes an epoch of exactly the members given.
    """
    import time

    from fedrec.cli.catalogue_size import catalogue_size
    from fedrec.config.loading import load_settings
    from fedrec.identity.public import PublicIdentity
    from fedrec.wire.grpc_channel import host_of
    from fedrec_authority.folder import AuthorityFolder

    settings = load_settings(settings_file)
    n_items, _ = catalogue_size(settings, items)
    members = [PublicIdentity.load(path) for path in client]
    _check_membership(settings.plan, members)
    folder = AuthorityFolder(into)
    membership = folder.begin(settings.plan, n_items, cell_size=cell_size)
    folder.check_number(epoch)
    _, is_new = folder.load_or_create()
    folder.keep(membership.of_exactly(members, int(time.time())))
    made = folder.rotate(number=epoch)
    if not folder.coordinator_path.exists():
        folder.serve_at([host_of(settings.client.coordinator), *(host or ())])
    folder.make_operator()
    content = _epoch_content(made) | {
        "authority_is_new": is_new,
        "authority_folder": str(folder.private),
        "authority_public": str(folder.public_key_path),
        "epoch_file": str(folder.epoch_path),
        "coordinator_file": str(folder.coordinator_path),
        "operator_file": str(folder.operator_path),
        "certificates": str(folder.certificates),
    }
    if as_json:
        print_json(content)
        return
    if is_new:
        typer.echo(f"Made the authority's key in {folder.private}: keep it and a copy.")
    _print_epoch(made)
    typer.echo(f"Give {folder.public_key_path} to every client (client.authority_key).")
    typer.echo(f"Give each client its own of {folder.certificates}/*.crt (client.certificate).")
    coordinators = ("epoch.json", "coordinator.pem", "operator.crt")
    typer.echo(f"Give {', '.join(coordinators)} of {into} to the coordinator.")
    typer.echo(f"{folder.operator_path} is for whoever runs `fedrec status`, `watch` and `stop`.")
    if folder.reveals:
        typer.echo(f"The secret key stays in {folder.revealer.folder}; nobody else can open sums.")
        typer.echo("Keep `fedrec keys authority run ADDRESS` running: no round goes on without it.")


@app.command()
def identity(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The client's state folder.")],
    label: Annotated[str, typer.Option(help="A name for people to read.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a client's keys in an empty or new folder, or show the public half of its keys."""
    from fedrec.identity.client_folder import new_or_known_identity
    from fedrec.identity.identity import PUBLIC_FILE

    public = new_or_known_identity(folder, label).public
    path = folder / PUBLIC_FILE
    if as_json:
        content = {"client_id": public.client_id, "label": public.label}
        print_json(content | {"public_identity": str(path)})
        return
    typer.echo(f"client id {public.client_id}")
    typer.echo(f"Give {path} to the key authority; compare the id by telephone.")


@app.command()
def certificate(
    host: Annotated[
        list[str], typer.Option(help="A name or address that clients call; may be repeated.")
    ],
    into: Annotated[Path, typer.Option(help="Folder of the keys.")] = Path("keys"),
    as_json: AsJson = False,
) -> None:
    """Make the coordinator's key and certificate anew, for other names than `keys new` knew."""
    from fedrec_authority.folder import AuthorityFolder

    folder = AuthorityFolder(into)
    folder.membership  # noqa: B018  # raises where there is no authority
    folder.serve_at(host)
    if as_json:
        print_json({"coordinator_file": str(folder.coordinator_path)})
        return
    typer.echo(f"Wrote {folder.coordinator_path}: give it to the coordinator, and start it again.")


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A key file, or a folder of key files.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show roster, epoch and fingerprints in key files; never a secret."""
    from fedrec_authority.cli.key_contents import describe_keys

    found = describe_keys(path)
    if as_json:
        print_json({"files": found})
        return
    for number, content in enumerate(found):
        rows = [(name.replace("_", " "), _shown(value)) for name, value in content.items()]
        print_table(rows[1:], title=("\n" if number else "") + _shown(content["path"]))


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


def _epoch_content(epoch: KeyEpoch) -> dict[str, object]:
    from fedrec_authority.cli.key_contents import describe_roster

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
