"""Change an authority's folder, and make its key epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.durable import replaced_after, require_writable
from fedrec.errors import KeysError
from fedrec.identity.authority import AUTHORITY_FILE, AUTHORITY_FOLDER, ROSTERS_FOLDER, Authority
from fedrec.identity.cells import Partition
from fedrec.identity.certificates import CERTIFICATE_FILE, hosts_of, key_of, split_certificates
from fedrec.identity.document import (
    JsonValue,
    encode_bytes,
    replace_secret,
    write_document,
    write_new_public,
    write_public,
)
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import RevealerKeyChanges
from fedrec.identity.public import PublicIdentity, write_authority_key
from fedrec.identity.roster import MAX_MEMBERS, Roster
from fedrec.plan.agreement import plan_from_json
from fedrec.plan.algorithm import divides_by_count
from fedrec.plan.layout import protection_of
from fedrec.plan.schema import Plan
from fedrec.protection.protection import with_encryptor
from fedrec.state_folder import FolderLock
from fedrec_authority.folder.authority_folder import (
    APPLICANTS,
    APPLICANTS_FILE,
    FILE_NAME,
    MEMBERSHIP_FILE,
    AuthorityFolder,
)
from fedrec_authority.members.cell_placement import place, resumed
from fedrec_authority.members.invitations import InvitationChanges
from fedrec_authority.members.operators import OperatorChanges
from fedrec_authority.members.register import MemberRegister

FEWEST_SINGLE_USERS = 32
"""The smallest number of members in a cell if exact sums are over one user each."""


def make_epoch(
    authority: Authority,
    plan: Plan,
    n_items: int,
    members: Iterable[PublicIdentity],
    *,
    number: int,
    revealer: RevealerKeyChanges | None = None,
    previous: Roster | None = None,
    partition: Partition | None = None,
) -> KeyEpoch:
    """Make the protection's secrets and the group key, and sign the roster.

    Args:
        n_items: size of the catalogue, which determines the protection's parameters.
        members: the members.
        number: the epoch's number, higher than every earlier one of this federation.
        revealer: if `protection.key_holder` is "authority", the keeper of the secret key. It stores
            the key before the epoch is published. Members get the encryption key.
        previous: the previous epoch's roster.
        partition: the cells, or None if the plan needs none.

    Raises:
        SettingsError: the protection has no parameters for these vectors.
        KeysError: the members cannot form a roster, or a revealer or cells are missing, not
            expected, or too small.
        RosterBreaksCells: the cells do not follow from those of the previous roster.
    """
    if (plan.authority_opens) != (revealer is not None):
        raise KeysError(
            f'protection.name is "{plan.protection.name}" and protection.key_holder '
            f'"{plan.protection.key_holder}", which takes {"a" if revealer is None else "no"} '
            f"revealer, but {'none' if revealer is None else 'one'} was given.",
            remedy="Make epochs with `fedrec keys`.",
        )
    if plan.has_cells != bool(partition and partition.cell_size):
        raise KeysError(
            f"These settings sum {'' if plan.has_cells else 'not '}over whole cells, but "
            f"{'no' if plan.has_cells else 'a'} cell size was given.",
            remedy="Make epochs with `fedrec keys`.",
        )
    if partition is not None and divides_by_count(plan):
        _check_single_users(partition)
    protection = protection_of(plan, n_items)
    context, secret = protection.generate()
    with secret:
        held = secret.export_for_wrapping()
        if revealer is not None:
            revealer.keep(number, held)
            held = with_encryptor(protection).encryption_key(secret)
        return authority.new_epoch(
            federation=plan.federation.name,
            epoch=number,
            members=members,
            minimum_summands=plan.rounds.minimum_summands,
            protection=plan.protection.name,
            protection_fingerprint=protection.chosen.fingerprint(),
            server_context=context,
            protection_secret=held,
            revealer=None if revealer is None else revealer.load_or_create().public,
            previous=previous,
            partition=partition,
        )


def _check_single_users(partition: Partition) -> None:
    """Refuse exact counts over a few members with a single user each."""
    single = [one for one in partition.standings if one.users_cap == 1]
    if single and 0 < partition.cell_size < FEWEST_SINGLE_USERS:
        raise KeysError(
            f"{len(single)} members have one user each (users_cap), and sums are exact counts over "
            f"at least {partition.cell_size} of them, which is too few to hide a user.",
            remedy=f"Begin a federation with rounds.minimum_summands = {FEWEST_SINGLE_USERS}, or "
            "choose an algorithm without exact counts (algorithm.name).",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The parties that lose their certificates when the issuer changes.

    Attributes:
        operators: the names of operators that need new credentials.
        invited: the names of invited clients that need a new invitation.
    """

    operators: tuple[str, ...]
    invited: tuple[str, ...]


def renew_issuer(folder: FolderChanges) -> Renewed:
    """Replace the issuer's key and every certificate that it issued.

    The holder of the old key could impersonate the coordinator. The next epoch
    (`FolderChanges.rotate`) announces the new issuer and brings members' certificates. After an
    interruption, the next call starts over.

    Raises:
        KeysError: there is no authority, or one of its files cannot be read.
    """
    authority = folder.authority
    hosts: tuple[str, ...] = ()
    if folder.coordinator_path.exists():
        own, *_ = split_certificates(folder.coordinator_path.read_bytes())
        hosts = hosts_of(own)
    authority.renew_issuer(folder.private)
    operators = folder.operators.renew(authority.issuer)
    folder.serve_at(hosts)
    for path in folder.certificates.glob("*.crt"):
        path.unlink()
    return Renewed(operators=operators, invited=folder.invitations.withdraw())


WAIT_SECONDS = 20.0
"""How long a change waits for another one. An epoch with many members takes seconds."""
_LIFE_LOCK, _CHANGE_LOCK = (f"{AUTHORITY_FOLDER}/{name}" for name in ("lock", "change.lock"))
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@contextmanager
def changing(folder: AuthorityFolder, *, new: bool = False) -> Iterator[FolderChanges]:
    """Lock the folder for changes until the block ends. Keep it short, without waiting for input.

    Args:
        new: whether the folder may lack an authority.

    Raises:
        KeysError: the authority is missing, or its record is damaged.
        FolderInUse: another process held the lock during the whole wait.
        SettingsError: the folder is not writable.
    """
    if new:
        require_writable(folder.path, "--into")
        require_writable(folder.private, "--into")
    else:
        folder.membership  # noqa: B018  # raises where there is no authority
    with FolderLock(folder.path, "--into", name=_CHANGE_LOCK, wait_seconds=WAIT_SECONDS) as lock:
        yield FolderChanges(folder.path, lock)


def running(folder: AuthorityFolder) -> FolderLock:
    """Lock the folder for the life of the authority's process. Changes stay possible.

    Raises:
        FolderInUse: another process has the lock.
    """
    return FolderLock(folder.path, "--into", name=_LIFE_LOCK)


class FolderChanges(AuthorityFolder):
    """A locked folder, with the methods that change it.

    Args:
        path: the folder.
        lock: the lock for changes, which this process holds.
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
        """Return the authority whose key is in the folder.

        Create one only in a folder that never had one.

        Raises:
            KeysError: the folder belongs to an authority whose private key is missing.
        """
        if (self.private / AUTHORITY_FILE).exists() or self.public_key_path.exists():
            return self.authority, False
        if self.last_epoch:
            raise KeysError(
                f"{self.path} has epoch {self.last_epoch} of an authority whose keys are missing.",
                remedy="Restore the folder from a backup (`fedrec keys restore`), or begin a new "
                "federation with another --into.",
            )
        made = Authority.create()
        made.save(self.private)
        return made, True

    def keep(self, membership: MemberRegister) -> None:
        """Atomically replace the record of members, readable by its owner only."""
        replace_secret(self.private / MEMBERSHIP_FILE, membership.to_json())

    def rotate(
        self, membership: MemberRegister | None = None, *, number: int = 0, resume: int = 0
    ) -> KeyEpoch:
        """Make an epoch of some members, with a new group key and protection secret.

        The members are recorded once their epoch is made, and before it is published. After an
        interruption in between (`is_interrupted`), the next call makes the next epoch. A full disk
        can't interrupt there: all that needs space is written before.

        Args:
            membership: the changed record of members, or None for the present one.
            number: the epoch's number, or 0 for the next one.
            resume: a paused cell to resume, or 0. All others stay paused.

        Raises:
            KeysError: the number is not above the last one, or the cell is not paused.
            FedrecError: the epoch cannot be made. The record of members is unchanged.
        """
        following = self.check_number(number)
        authority, _ = self.load_or_create()
        membership = membership or self.membership
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
            revealer=self.revealer if plan.authority_opens else None,
            previous=previous,
            partition=place(before, membership.standings, following),
        )
        rosters = self.private / ROSTERS_FOLDER
        recorded = replace(membership, last_epoch=made.roster.epoch, is_changed=False).to_json()
        # The members are recorded before the epoch is published, because a member that it removes
        # must not be in the next one. A roster uses up its number, so it is written last.
        with (
            replaced_after(self.epoch_path, made.to_json(), private=False),
            replaced_after(self.private / MEMBERSHIP_FILE, recorded, private=True),
        ):
            write_authority_key(
                self.public_key_path, authority.public_key, authority.issuer.certificate
            )
            self._write_certificates(made)
            write_new_public(rosters / f"{made.roster.epoch:08d}.json", made.roster.to_json())
        return made

    def serve_at(self, hosts: Sequence[str]) -> None:
        """Write the coordinator's key and certificate, replacing earlier ones.

        Args:
            hosts: names and addresses at which clients call it, in addition to this machine's own.
        """
        authority, _ = self.load_or_create()
        names = tuple(dict.fromkeys((*hosts, *_LOCAL_HOSTS)))
        made = authority.issuer.credentials("coordinator", names[0], hosts=names)
        replace_secret(self.coordinator_path, made.to_pem())

    def make_operator(self) -> None:
        """Write the credentials of the authority's process, unless they exist."""
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
        """Make an invitation and return its file, which is for its holder alone.

        Raises:
            KeysError: the name is not a valid file name, or was used before.
        """
        if not FILE_NAME.fullmatch(name):
            raise KeysError(
                f"{name!r} cannot be the name of an invitation.",
                remedy="Use letters, digits, dots, dashes and underscores.",
            )
        self.membership  # noqa: B018  # raises where there is no federation to join
        authority, _ = self.load_or_create()
        path = self.path / "invitations" / f"{name}.pem"
        self.invitations.make(authority.issuer, name, path, confirm=confirm, now=now)
        return path

    def keep_applicants(self, applicants: Iterable[tuple[PublicIdentity, bytes]]) -> None:
        """Replace the list of applicants, with at most as many as a roster has members."""
        ordered = sorted(applicants, key=lambda found: found[0].client_id)[:MAX_MEMBERS]
        entries: list[JsonValue] = [
            {**identity.fields(), "consent": encode_bytes(consent)} for identity, consent in ordered
        ]
        document = write_document(APPLICANTS, {"applicants": entries})
        replace_secret(self.private / APPLICANTS_FILE, document)
