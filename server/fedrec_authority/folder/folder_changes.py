"""Changes of an authority's folder: each reads, decides and writes while no other process does.

Whatever changes in the folder is a method of `FolderChanges`, and only `changing` gives one out.
Killed in between, the lock is free, and the folder as it was before or after each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedrec.config.plan import plan_from_json
from fedrec.durable import require_writable
from fedrec.errors import KeysError
from fedrec.folder_lock import FolderLock
from fedrec.identity.authority import AUTHORITY_FILE, AUTHORITY_FOLDER, ROSTERS_FOLDER, Authority
from fedrec.identity.cells import Partition
from fedrec.identity.certificates import CERTIFICATE_FILE, key_of
from fedrec.identity.document import JsonValue, encode_bytes, write_document
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import RevealerKeyChanges
from fedrec.identity.key_files import replace_secret, write_new_public, write_public
from fedrec.identity.public import PublicIdentity, write_authority_key
from fedrec.identity.roster import MAX_MEMBERS
from fedrec.training.key_epochs import make_epoch
from fedrec_authority.folder.authority_folder import (
    APPLICANTS,
    APPLICANTS_FILE,
    FILE_NAME,
    MEMBERSHIP_FILE,
    AuthorityFolder,
)
from fedrec_authority.membership.cell_placement import place, resumed
from fedrec_authority.membership.invitations import InvitationChanges
from fedrec_authority.membership.members import Membership
from fedrec_authority.membership.operators import OperatorChanges

__all__ = ["WAIT_SECONDS", "FolderChanges", "changing", "running"]

WAIT_SECONDS = 20.0
"""How long a change waits for another one; making an epoch of many members takes seconds."""
_LIFE_LOCK, _CHANGE_LOCK = (f"{AUTHORITY_FOLDER}/{name}" for name in ("lock", "change.lock"))
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@contextmanager
def changing(folder: AuthorityFolder, *, new: bool = False) -> Iterator[FolderChanges]:
    """Keep other processes from changing the folder until the block ends; short, and unprompted.

    Args:
        new: whether there may be no authority in it yet.

    Raises:
        KeysError: there is none, or its record is damaged.
        FolderInUse: another process was changing it all the time that was waited.
        SettingsError: nothing can be written there.
    """
    if new:
        require_writable(folder.path, "--into")
        require_writable(folder.private, "--into")
    else:
        folder.membership  # noqa: B018  # raises where there is no authority
    with FolderLock(folder.path, "--into", name=_CHANGE_LOCK, wait_seconds=WAIT_SECONDS) as lock:
        yield FolderChanges(folder.path, lock)


def running(folder: AuthorityFolder) -> FolderLock:
    """Take the folder for the life of the authority's process; changes go on beside it.

    Raises:
        FolderInUse: another process serves it.
    """
    return FolderLock(folder.path, "--into", name=_LIFE_LOCK)


class FolderChanges(AuthorityFolder):
    """A folder that only this process may change, with what changes it.

    Args:
        path: the folder.
        lock: for changing it, which this process holds.
    """

    operators: OperatorChanges
    invitations: InvitationChanges
    revealer: RevealerKeyChanges

    def __init__(self, path: Path, lock: FolderLock) -> None:
        super().__init__(path)
        self._lock = lock
        self.operators = OperatorChanges(path)
        self.invitations = InvitationChanges(self.invitations.path)
        self.revealer = RevealerKeyChanges(self.revealer.folder)

    def load_or_create(self) -> tuple[Authority, bool]:
        """Return the authority whose key is here; a new one only where no other was before.

        Raises:
            KeysError: the folder belongs to an authority whose private key is gone.
        """
        if (self.private / AUTHORITY_FILE).exists() or self.public_key_path.exists():
            return self.authority, False
        if self.last_epoch:
            raise KeysError(
                f"{self.path} has epoch {self.last_epoch} of an authority whose keys are gone.",
                remedy="Restore the folder from a copy (`fedrec keys restore`), or start anew with "
                "another --into.",
            )
        made = Authority.create()
        made.save(self.private)
        return made, True

    def keep(self, membership: Membership) -> None:
        """Replace the record of members in one step; only its owner may read it."""
        replace_secret(self.private / MEMBERSHIP_FILE, membership.to_json())

    def rotate(self, *, number: int = 0, resume: int = 0) -> KeyEpoch:
        """Make an epoch of the present members, with a new group key and protection secret.

        Killed in between, the next call makes the epoch with the same number, which nobody has
        seen, or with the next one.

        Args:
            number: of the epoch; 0 takes the one after the last.
            resume: a paused cell that is active again; 0 for none. All others stay paused.

        Raises:
            KeysError: the number is not above the last one, or the cell is not paused.
        """
        following = self.check_number(number)
        authority, _ = self.load_or_create()
        membership = self.membership
        plan = plan_from_json(membership.plan_json)
        previous = self.last_roster
        before = Partition() if previous is None else previous.partition
        before = replace(before, cell_size=membership.cell_size).with_paused(self.paused)
        before = resumed(before, resume)
        made = make_epoch(
            authority,
            plan,
            membership.n_items,
            membership.present,
            number=following,
            revealer=self.revealer if self.reveals else None,
            previous=previous,
            partition=place(before, membership.standings, following),
        )
        rosters = self.private / ROSTERS_FOLDER
        write_new_public(rosters / f"{made.roster.epoch:08d}.json", made.roster.to_json())
        write_authority_key(
            self.public_key_path, authority.public_key, authority.issuer.certificate
        )
        made.save(self.epoch_path)
        self._write_certificates(made)
        self.keep(replace(membership, last_epoch=made.roster.epoch, is_changed=False))
        return made

    def serve_at(self, hosts: Sequence[str]) -> None:
        """Write the coordinator's key and certificate, in place of earlier ones.

        Args:
            hosts: names and addresses at which clients call it, besides this machine's own.
        """
        authority, _ = self.load_or_create()
        names = tuple(dict.fromkeys((*hosts, *_LOCAL_HOSTS)))
        made = authority.issuer.credentials("coordinator", names[0], hosts=names)
        replace_secret(self.coordinator_path, made.to_pem())

    def make_operator(self) -> None:
        """Write what the authority's process calls with; what is here stays."""
        self.operators.make_own(self.load_or_create()[0].issuer)

    def _write_certificates(self, epoch: KeyEpoch) -> None:
        members, revealer = epoch.roster.members, epoch.roster.revealer
        paths = self.certificate_paths(members)
        for member in members:
            path = paths[member.client_id]
            if not path.exists() or key_of(path.read_bytes(), str(path)) != member.tls_key:
                write_public(path, epoch.certificates[member.client_id])
        if revealer is not None:
            path = self.revealer.folder / CERTIFICATE_FILE
            write_public(path, epoch.certificates[revealer.client_id])

    def invite(self, name: str, *, confirm: bool, now: int) -> Path:
        """Make an invitation; return its file, which is for its holder alone.

        Raises:
            KeysError: the name cannot be a file's, or was given before.
        """
        if not FILE_NAME.fullmatch(name):
            raise KeysError(
                f"{name!r} is no name for an invitation.",
                remedy="Use letters, digits, dots, dashes and underscores.",
            )
        self.membership  # noqa: B018  # raises where there is no federation to join
        authority, _ = self.load_or_create()
        path = self.path / "invitations" / f"{name}.pem"
        self.invitations.make(authority.issuer, name, path, confirm=confirm, now=now)
        return path

    def keep_applicants(self, applicants: Iterable[tuple[PublicIdentity, bytes]]) -> None:
        """Replace the list of applicants; at most as many as a roster has members."""
        ordered = sorted(applicants, key=lambda found: found[0].client_id)[:MAX_MEMBERS]
        entries: list[JsonValue] = [
            {**identity.fields(), "consent": encode_bytes(consent)} for identity, consent in ordered
        ]
        document = write_document(APPLICANTS, {"applicants": entries})
        replace_secret(self.private / APPLICANTS_FILE, document)
