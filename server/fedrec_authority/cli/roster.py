"""`fedrec keys roster` and `fedrec keys rotate`: change members, without the network."""

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
"""The authority's folder from `fedrec provision`, relative to where that ran."""

KeysFolder = Annotated[Path, typer.Option("--into", help="The authority's folder.")]
Fingerprint = Annotated[
    str, typer.Argument(help="A client id, or at least 16 characters of its beginning.")
]
NoRotate = Annotated[
    bool, typer.Option("--no-rotate", help="Make no epoch yet. `fedrec keys rotate` does it later.")
]

app = typer.Typer(
    help="Admit, remove and list members, and see which are summed together.",
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
        int, typer.Option(min=0, help="Maximum number of its users. If 0, uses the plan's limit.")
    ] = 0,
    into: KeysFolder = AUTHORITY_FOLDER,
    no_rotate: NoRotate = False,
) -> Result:
    """Admit an applicant to the next epoch. First compare its id by telephone."""
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
    """Remove a member from the next epoch. It keeps the data that it has seen."""
    from fedrec.errors import KeysError

    def removed(folder: AuthorityFolder, now: int) -> tuple[MemberRegister, str]:
        found = folder.find_member(fingerprint)
        after = folder.membership.without_member(found.client_id, now)
        if not after.present:
            raise KeysError(
                f"{found.label or found.client_id} is the last member. A key epoch needs at least "
                "one.",
                remedy="If the federation is over, stop the run with `fedrec stop`.",
            )
        return after, f"removed {found.client_id} {found.label}"

    return _change(into, removed, no_rotate)


def replace_member(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The member's current client id.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="The same party's new identity.pub.json.")
    ],
    into: KeysFolder = AUTHORITY_FOLDER,
    no_rotate: NoRotate = False,
) -> Result:
    """Replace a member's keys by new ones of the same party. First compare their id.

    Use this for lost or stolen keys. Don't give the place to another party: its data would reveal
    the data of the old party. Remove the old party and add the new one instead.
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
        int, typer.Option(min=0, help="Number of the epoch. If 0, uses the one after the last.")
    ] = 0,
    settings_file: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="Settings for a new run.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address at which clients call. Replaces the coordinator's key and "
            "certificate. Can be repeated."
        ),
    ] = None,
    new_ca: Annotated[
        bool,
        typer.Option(
            "--new-ca",
            help="After a theft of the authority's key for certificates: replace it and all "
            "certificates, which you copy by hand. Run `fedrec stop` first.",
        ),
    ] = False,
) -> Result:
    """Make the next epoch of the current members: a new group key and new protection keys.

    `fedrec keys authority run` delivers it to the coordinator, and members notice automatically.
    With --settings it is for a different run. Give these settings to all parties.
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
        begun = None
        if settings is not None:
            n_items = folder.membership.n_items
            if settings.data.catalogue is not None:
                n_items = len(Catalogue.load(settings.data.catalogue))
            begun = folder.begin(settings.plan, n_items)
        renewed = renew_issuer(folder) if new_ca else None
        made = folder.rotate(begun, number=epoch)
        # The owner may have deleted a stolen one.
        folder.make_operator()
        if hosts:
            folder.serve_at(hosts)
        membership = folder.membership
    carry: list[str] = []
    if renewed is not None:
        carry = list(_what_to_carry(folder, renewed))
    elif hosts:
        carry = [f"Copy {folder.coordinator_path} to the coordinator, and restart it."]
    return changed(into, "rotated", made, membership, carry)


def _what_to_carry(folder: AuthorityFolder, renewed: Renewed) -> Iterator[str]:
    """Describe what every party needs before it can connect to the others again."""
    yield "\nThe old certificates no longer work. Copy the new ones by hand:"
    yield (
        "- Stop the coordinator. Replace its kit's epoch.json, coordinator.pem and operator.crt "
        f"by those of {folder.path}. Restart it with --resume."
    )
    yield (
        f"- For each client, replace its kit's file by {folder.public_key_path}. Put its "
        f"certificate from {folder.certificates} into its state folder as client.crt. Restart it."
    )
    yield "- Restart `fedrec keys authority run` here."
    if renewed.operators:
        names = ", ".join(renewed.operators)
        yield f"- For other operators, run `fedrec provision --operator NAME` again: {names}."
    if renewed.invited:
        names = ", ".join(renewed.invited)
        yield f"- For clients yet to apply, run `fedrec provision --add NAME` again: {names}."


def _change(
    into: Path,
    decide: Callable[[AuthorityFolder, int], tuple[MemberRegister, str]],
    no_rotate: bool,
) -> Result:
    """Store the changed members and make their epoch.

    Args:
        decide: returns the members at a time and a description of the change. The folder is locked
            meanwhile.
    """
    from fedrec_authority.folder.authority_folder import AuthorityFolder
    from fedrec_authority.folder.folder_changes import changing

    with changing(AuthorityFolder(into)) as folder:
        members, what = decide(folder, int(time.time()))
        made = None if no_rotate else folder.rotate(members)
        if made is None:
            folder.keep(members)
        membership = folder.membership
    return changed(into, what.strip(), made, membership)


def changed(
    into: Path,
    what: str,
    made: KeyEpoch | None,
    membership: MemberRegister,
    carry: Sequence[str] = (),
) -> Result:
    """Return the change of the roster, what its epoch needs next, and what to carry."""
    from fedrec.identity.authority import EPOCH_FILE

    members, too_few = len(membership.present), membership.too_few()
    unplaced = () if made is None else made.roster.unplaced
    lines = [f"{what}; {count_of(members, 'member')}"]
    if made is None:
        lines.append("No epoch was made. Run `fedrec keys rotate` to make it.")
    else:
        lines.append(f"Made epoch {made.roster.epoch}: {into / EPOCH_FILE}")
    lines += [too_few] if too_few else []
    if unplaced and made is not None:
        names = ", ".join(one.label or one.client_id[:16] for one in unplaced)
        lines.append(f"In no sum yet: {names}, because {made.roster.why_unplaced()}.")
    return Result(
        content={
            "done": what,
            "epoch": membership.last_epoch,
            "rotated": made is not None,
            "members": members,
            "rounds_can_open": not too_few,
            "unplaced": [one.label for one in unplaced],
        },
        text=(*lines, *carry),
    )
