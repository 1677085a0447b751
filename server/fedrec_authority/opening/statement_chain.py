"""The chain of statements goes on where another folder of this authority said the last one."""

from __future__ import annotations

from fedrec.errors import AuthorityIsOld
from fedrec.identity.public import verify
from fedrec.wire.link import Link
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.recovery import former_rosters
from fedrec_authority.opening.opened_sums import OpenedSums
from fedrec_client.membership.membership import Membership
from fedrec_client.state.private_store import PrivateStore

__all__ = ["continue_chain"]


def continue_chain(
    link: Link, membership: Membership, store: PrivateStore, folder: AuthorityFolder
) -> None:
    """Learn what was said last, before the first statement of a process or an epoch.

    A backup may be older than that: members and the coordinator take none for a later statement
    that does not follow. Statements are on disk before they are heard, so that a later one of the
    present epoch is another copy's of this folder: the key is not used beside that.

    Raises:
        AuthorityIsOld: a revealer said it that this folder does not know, or a newer copy of it.
        BadSignature: the coordinator made it up.
    """
    opened, head = OpenedSums(store), store.state.head
    shown = link.federation(membership.client_id).statement
    if shown is None or (head is not None and head.sequence >= shown.sequence):
        return
    present = membership.roster
    rosters = (present, *former_rosters(folder, present))
    known = {one.revealer.client_id: one.revealer for one in rosters if one.revealer}
    signer = known.get(shown.client_id)
    if signer is None or (shown.federation, shown.run) != (present.federation, membership.run):
        raise AuthorityIsOld(
            f"Statement {shown.sequence}, on round {shown.round}, is of a revealer that "
            f"{folder.path} does not know.",
            remedy="Restore the newest backup of the authority (`fedrec keys restore`).",
        )
    verify(signer.signing_key, shown.statement(), shown.signature)
    if shown.epoch == membership.epoch:
        raise AuthorityIsOld(
            f"Statement {shown.sequence}, on round {shown.round} of epoch {shown.epoch}, is this "
            f"key authority's; the last one in {folder.path} is "
            f"{'none' if head is None else head.sequence}. It is an older copy of the folder.",
            remedy="Start the newest copy. Where it is lost, restore the backup "
            "(`fedrec keys restore`), which begins a new epoch.",
        )
    # What this folder knew of is in its rosters, or was resumed in one.
    known_before = head.paused if head is not None and head.epoch == shown.epoch else ()
    active = {cell.id for cell in present.partition.cells if cell.state == "active"}
    unknown = active.intersection(shown.paused).difference(known_before)
    if unknown:
        opened.keep_paused(unknown)
    opened.record_statement(shown)
