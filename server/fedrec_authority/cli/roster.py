"""`fedrec keys roster` and `fedrec keys rotate`: who is a member, changed without the network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.cli.terminal import Result, count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fedrec.identity.epoch import KeyEpoch
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import Renewed
    from fedrec_authority.members.register import MemberRegister


AUTHORITY_FOLDER = Path("kits/authority")
"""Where `fedrec provision` makes the authority's folder, seen from where it ran."""

KeysFolder = Annotated[Path, typer.Option("--into", help="The authority's folder.")]
Fingerprint = Annotated[
    str, typer.Argument(help="A client id, or at least 16 characters of its beginning.")
]
NoRotate = Annotated[
    bool, typer.Option("--no-rotate", help="Make no epoch yet; `fedrec keys rotate` does it.")
]

app = typer.Typer(
    help="Admit members, remove them, list them, and see how they are summed.",
    no_args_is_help=True,
    add_completion=False,
    epilog=(
        "Examples:\n"
        "  fedrec keys roster list\n"
        "  fedrec keys roster admit 9f86d081884c7d65\n"
        "  fedrec keys roster admit 9f86d081884c7d65 --identity hospital-d.pub.json\n"
        "  fedrec keys roster remove 60303ae22b998861\n"
        "  fedrec keys roster cells --corrupt-share .2"
    ),
)


@app.command()
def admit(
    fingerprint: Fingerprint,
    identity: Annotated[
        Path | None,
        typer.Option(
            help="The client's identity.pub.json, if it did not apply at the coordinator."
        ),
    ] = None,
    users_cap: Annotated[
        int, typer.Option(min=0, help="Users that it has at most; 0 leaves it to the plan.")
    ] = 0,
    into: KeysFolder = AUTHORITY_FOLDER,
    no_rotate: NoRotate = False,
) -> Result:
    """Make an applicant a member of the next epoch, after its id was compared by telephone."""
    from fedrec.identity.public import PublicIdentity
    from fedrec_authority.members.register import find

    def admitted(folder: AuthorityFolder, now: int) -> tuple[MemberRegister, str]:
        consent = b""
        if identity is None:
            found, consent = folder.find_joiner(fingerprint)
        else:
            found = find(fingerprint, [PublicIdentity.load(identity)], f"keys in {identity}")
        after = folder.membership.with_member(found, now, users_cap=users_cap, consent=consent)
        return after, f"added {found.client_id} {found.label}"

    return _change(into, admitted, no_rotate)


@app.command()
def remove(
    fingerprint: Fingerprint,
    into: KeysFolder = AUTHORITY_FOLDER,
    no_rotate: NoRotate = False,
) -> Result:
    """Leave a member out of the next epoch; it keeps what it saw until then."""
    from fedrec.errors import KeysError

    def removed(folder: AuthorityFolder, now: int) -> tuple[MemberRegister, str]:
        found = folder.find_member(fingerprint)
        after = folder.membership.without_member(found.client_id, now)
        if not after.present:
            raise KeysError(
                "It is the last member; an epoch needs one.",
                remedy="Stop the run with `fedrec stop` where the federation is over.",
            )
        return after, f"removed {found.client_id} {found.label}"

    return _change(into, removed, no_rotate)


def replace_member(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The member's present client id.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="The same party's new identity.pub.json.")
    ],
    into: KeysFolder = AUTHORITY_FOLDER,
    no_rotate: NoRotate = False,
) -> Result:
    """Give a member's place to new keys of the same party, after their id was compared.

    For lost or stolen keys. Somebody else's data under the old place would show what the old ones
    were: another party is removed and added.
    """
    from fedrec.identity.public import PublicIdentity

    successor = PublicIdentity.load(new)

    def replaced(folder: AuthorityFolder, now: int) -> tuple[MemberRegister, str]:
        before = folder.find_member(old).client_id
        what = f"replaced {before} by {successor.client_id} {successor.label}"
        return folder.membership.with_successor(before, successor, now), what

    return _change(into, replaced, no_rotate)


def rotate(
    into: KeysFolder = AUTHORITY_FOLDER,
    epoch: Annotated[
        int, typer.Option(min=0, help="Number of the epoch; 0 takes the one after the last.")
    ] = 0,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="Settings of which some were changed."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address at which clients call: makes the coordinator's key and "
            "certificate anew, too. Once for each."
        ),
    ] = None,
    new_ca: Annotated[
        bool,
        typer.Option(
            "--new-ca",
            help="After a theft of the authority's key for certificates: another one, and every "
            "certificate anew, which are carried by hand. `fedrec stop` the run before.",
        ),
    ] = False,
) -> Result:
    """Make the next epoch of the present members: a new group key and new protection keys.

    `fedrec keys authority run` brings it to the coordinator; members notice by themselves. With
    --settings it is for another run, whose settings all parties have to be given.
    """
    from fedrec.data import Catalogue
    from fedrec.listening import plain_host
    from fedrec.settings.validation import load_settings
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import changing, renew_issuer

    settings = None if settings_file is None else load_settings(settings_file)
    hosts = [plain_host(name, "--host", to_call=True) for name in host or ()]
    with changing(AuthorityFolder(into)) as folder:
        folder.check_number(epoch)
        if settings is not None:
            n_items = folder.membership.n_items
            if settings.data.catalogue is not None:
                n_items = len(Catalogue.load(settings.data.catalogue))
            folder.keep(folder.begin(settings.plan, n_items))
        renewed = renew_issuer(folder) if new_ca else None
        made = folder.rotate(number=epoch)
        # Where a stolen one was deleted.
        folder.make_operator()
        if hosts:
            folder.serve_at(hosts)
        membership = folder.membership
    carry: list[str] = []
    if renewed is not None:
        carry = list(_what_to_carry(folder, renewed))
    elif hosts:
        carry = [f"Give {folder.coordinator_path} to the coordinator, and start it again."]
    return changed(into, "rotated", made, membership, carry)


def _what_to_carry(folder: AuthorityFolder, renewed: Renewed) -> Iterator[str]:
    """Say what every party needs before it can speak with the others again."""
    yield "\nThe old certificates are good for nothing now. The new ones are carried by hand:"
    yield (
        "- the coordinator is ended, given epoch.json, coordinator.pem and operator.crt of "
        f"{folder.path} in place of its kit's, and started again, with --resume;"
    )
    yield (
        f"- each client is given {folder.public_key_path} in place of its kit's, and its "
        f"own of {folder.certificates} as client.crt in its state folder, and started again;"
    )
    yield "- here `fedrec keys authority run` is started again."
    if renewed.operators:
        names = ", ".join(renewed.operators)
        yield f"- Other operators need `fedrec provision --operator NAME` again: {names}."
    if renewed.invited:
        names = ", ".join(renewed.invited)
        yield f"- Who has not applied yet needs `fedrec provision --add NAME` again: {names}."


def _change(
    into: Path,
    decide: Callable[[AuthorityFolder, int], tuple[MemberRegister, str]],
    no_rotate: bool,
) -> Result:
    """Keep the members that are decided on, make their epoch, and say so.

    Args:
        decide: returns, at a time, who they are then and what was done, read while nobody else
            changes the folder.
    """
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import changing

    with changing(AuthorityFolder(into)) as folder:
        members, what = decide(folder, int(time.time()))
        folder.keep(members)
        made = None if no_rotate else folder.rotate()
        membership = folder.membership
    return changed(into, what.strip(), made, membership)


def changed(
    into: Path,
    what: str,
    made: KeyEpoch | None,
    membership: MemberRegister,
    carry: Sequence[str] = (),
) -> Result:
    """Return what was done to the roster, what its epoch needs next, and what is to be carried."""
    from fedrec.identity.authority import EPOCH_FILE

    members, too_few = len(membership.present), membership.too_few()
    unplaced = () if made is None else made.roster.unplaced
    said = [f"{what}; {count_of(members, 'member')}"]
    if made is None:
        said.append("No epoch was made; `fedrec keys rotate` makes it.")
    else:
        said.append(f"Made epoch {made.roster.epoch}: {into / EPOCH_FILE}")
    said += [too_few] if too_few else []
    if unplaced and made is not None:
        names = ", ".join(one.label or one.client_id[:16] for one in unplaced)
        said.append(f"In no sum yet: {names}; {made.roster.why_unplaced()}.")
    return Result(
        content={
            "done": what,
            "epoch": membership.last_epoch,
            "rotated": made is not None,
            "members": members,
            "rounds_can_open": not too_few,
            "unplaced": [one.label for one in unplaced],
        },
        text=(*said, *carry),
    )
