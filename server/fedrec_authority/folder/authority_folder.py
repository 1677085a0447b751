"""Read the authority's state folder. `folder_changes` changes it.

::

    authority.pub.json           the public key that clients pin, and the issuer's certificate
    epoch.json                   the newest epoch's public bundle, for the coordinator
    coordinator.pem              the coordinator's key and certificate
    operator.pem                 the credentials of the authority's process
    operator.crt                 the certificates of all operators, for the coordinator
    clients/NAME.crt             a member's certificate, for its owner
    authority/lock               held by the process that serves the folder, `keys authority run`
    authority/change.lock        held during each change of the folder
    authority/authority.key      the private keys: of rosters and of certificates
    authority/membership.json    members that came and went, the plan, the last epoch's number
    authority/rosters/NNNNNNNN   the signed roster of every epoch, without secrets
    invitations/NAME.pem         an invitation, for a client that is to become a member
    authority/invitations.json   invitations, and the applicants that used them
    authority/applicants.json    applicants that wait for approval
    authority/revealer/          the revealer's keys, if `protection.key_holder` is "authority"

Secrets of an epoch are wrapped for the members and not kept. If the authority opens the sums, it
keeps the epoch's secret key, and members get none. The bundle of an older epoch is replaced, so
that a stolen member's key opens nothing in this folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrec.errors import KeysError
from fedrec.identity.authority import (
    AUTHORITY_FILE,
    AUTHORITY_FOLDER,
    EPOCH_FILE,
    ROSTERS_FOLDER,
    Authority,
)
from fedrec.identity.certificates import CERTIFICATE_FILE, Credentials
from fedrec.identity.document import Document, read_public
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import REVEALER_FOLDER, RevealerKeys
from fedrec.identity.public import PublicIdentity, read_authority_key, read_issuer
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.plan.agreement import plan_from_json, plan_to_json
from fedrec.plan.schema import Plan
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.members.cell_placement import cell_size_of
from fedrec_authority.members.invitations import INVITATIONS_FILE, Invitations
from fedrec_authority.members.operators import Operators
from fedrec_authority.members.register import MemberRegister, find

STATE_FOLDER = "state"
"""The file of the revealer's state, in its folder."""
AUTHORITY_PUBLIC_FILE = "authority.pub.json"
MEMBERSHIP_FILE = "membership.json"
APPLICANTS_FILE = "applicants.json"
MAX_BYTES = 64 << 20
MOST_SKIPPED = 1_000_000
"""The most epoch numbers that a folder leaves out at once. A number fits 63 bits."""
APPLICANTS = "fedrec applicants"
_RESTORE = "Restore the folder from a backup (`fedrec keys restore`)."
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AuthorityFolder:
    """One authority's keys, members and epochs.

    Args:
        path: the folder of the keys, by convention `keys`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private = path / AUTHORITY_FOLDER
        self.public_key_path = path / AUTHORITY_PUBLIC_FILE
        self.epoch_path = path / EPOCH_FILE
        self.coordinator_path = path / "coordinator.pem"
        self.operators = Operators(path)
        self.certificates = path / "clients"
        self.invitations = Invitations(self.private / INVITATIONS_FILE)
        self.revealer = RevealerKeys(self.private / REVEALER_FOLDER)

    @property
    def authority(self) -> Authority:
        """Return the authority whose key is in this folder.

        Raises:
            KeysError: the key is missing, or it is not the one that clients pinned.
        """
        pinned = read_authority_key(self.public_key_path) if self.public_key_path.exists() else b""
        is_here = (self.private / AUTHORITY_FILE).exists()
        found = Authority.load(self.private) if is_here or not pinned else None
        if found is None or (pinned and found.public_key != pinned):
            raise KeysError(
                f"{self.public_key_path} belongs to an authority whose private key is not in "
                f"{self.private}. Clients that pinned it would refuse an epoch of another "
                "authority.",
                remedy="Restore the folder from a backup (`fedrec keys restore`). Or begin a new "
                "federation with another --into, and give every client the new "
                "authority.pub.json.",
            )
        return found

    @property
    def membership(self) -> MemberRegister:
        """Members, plan and the last epoch's number.

        Raises:
            KeysError: the folder has no epoch yet, or the file is damaged.
        """
        path = self.private / MEMBERSHIP_FILE
        raw = read_public(
            path,
            max_bytes=MAX_BYTES,
            remedy=_RESTORE
            if self._roster_numbers
            else "Check --into. `fedrec provision` makes a federation's keys.",
        )
        return MemberRegister.from_json(raw, str(path))

    @property
    def reveals(self) -> bool:
        """Whether the plan lets this authority hold the secret key and open the sums.

        Raises:
            KeysError: as for `membership`.
        """
        plan = plan_from_json(self.membership.plan_json)
        return plan.authority_opens

    @property
    def newest(self) -> KeyEpoch | None:
        """The newest epoch's public bundle, or None before the first."""
        return KeyEpoch.load(self.epoch_path) if self.epoch_path.exists() else None

    def is_interrupted(self, newest: KeyEpoch | None) -> bool:
        """Return whether a change was killed after it recorded its members, before their epoch."""
        return newest is not None and newest.roster.epoch < self.membership.last_epoch

    @property
    def last_roster(self) -> Roster | None:
        """The roster of the last epoch of this folder, or None before the first.

        Raises:
            KeysError: the roster is missing or damaged. Without it, members would refuse new cells.
        """
        if not self.last_epoch:
            return None
        path = self.private / ROSTERS_FOLDER / f"{self.last_epoch:08d}.json"
        return Roster.from_json(read_public(path, max_bytes=MAX_BYTES, remedy=_RESTORE))

    @property
    def paused(self) -> tuple[int, ...]:
        """The cells that the revealer paused since the last roster was made."""
        if not (self.revealer.folder / STATE_FOLDER).exists() or self.last_roster is None:
            return ()
        store = OpenedSums(self.revealer.folder / STATE_FOLDER, read_only=True)
        if not store.is_bound:
            return ()
        last, state = self.last_roster.epoch, store.state
        # Cells that were paused earlier are in the roster already.
        return tuple(one.cell for one in state.paused if state.epoch == last or one.newest >= last)

    @property
    def last_epoch(self) -> int:
        """The highest epoch number so far, or 0."""
        # A restored folder has rosters but no bundle. One that was killed may lack the record.
        known = self._roster_numbers
        known += [self.newest.roster.epoch] if self.newest is not None else []
        if (self.private / MEMBERSHIP_FILE).exists():
            known.append(self.membership.last_epoch)
        return max(known, default=0)

    @property
    def _roster_numbers(self) -> list[int]:
        rosters = (self.private / ROSTERS_FOLDER).glob("*.json")
        return [int(path.stem) for path in rosters if path.stem.isdecimal()]

    def begin(self, plan: Plan, n_items: int) -> MemberRegister:
        """Return the membership for a plan. It has the known members.

        Raises:
            KeysError: the folder belongs to a different federation.
        """
        known, newest = (self.private / MEMBERSHIP_FILE).exists(), self.newest
        name = None if newest is None else newest.roster.federation
        if known:
            name = plan_from_json(self.membership.plan_json).federation.name
        if name not in (None, plan.federation.name):
            raise KeysError(
                f"{self.path} belongs to the federation {name!r}, the settings to "
                f"{plan.federation.name!r}.",
                remedy="Choose another folder with --into.",
            )
        size = cell_size_of(plan)
        if not known:
            return MemberRegister(plan_json=plan_to_json(plan), n_items=n_items, cell_size=size)
        found, roster = self.membership, self.last_roster
        if roster is not None and roster.partition.cells:
            if not 0 < size <= found.cell_size:
                raise KeysError(
                    f"The cells of {self.path} have at least {found.cell_size} members, these "
                    f"settings need {size}. Sums over the current cells were opened already.",
                    remedy="Keep rounds.minimum_summands and the protection as they were, or "
                    "begin a new federation with another --into.",
                )
            size = found.cell_size
        return replace(found, plan_json=plan_to_json(plan), n_items=n_items, cell_size=size)

    def check_number(self, wanted: int) -> int:
        """Return the number of the next epoch: the one after the last, or a higher one.

        Args:
            wanted: the number, or 0 for the next one.

        Raises:
            KeysError: the number is not above the last one, or far above it: numbers must not run
                out, whatever a coordinator claims.
        """
        last = self.last_epoch
        if wanted > last + MOST_SKIPPED:
            raise KeysError(
                f"Epoch {wanted} was requested, but {self.path} last made epoch {last}. At most "
                f"{MOST_SKIPPED} numbers may be left out.",
                remedy=f"Use epoch {last + 1} or omit --epoch. A coordinator that claims such an "
                "epoch is damaged or lies.",
            )
        if wanted and wanted <= last:
            raise KeysError(
                f"Epoch {wanted} was requested, but {self.path} has already made epoch {last}.",
                remedy=f"Use epoch {last + 1} or omit --epoch.",
            )
        return wanted or last + 1

    def certificate_paths(self, members: Sequence[PublicIdentity]) -> dict[ClientId, Path]:
        """Return the paths of members' certificates, named after their labels if those are unique.

        Owners choose their labels, so only plain ones become file names.
        """
        labels = Counter(member.label for member in members)
        names = {
            member.client_id: member.label
            if labels[member.label] == 1 and FILE_NAME.fullmatch(member.label)
            else member.client_id[:16]
            for member in members
        }
        return {client_id: self.certificates / f"{name}.crt" for client_id, name in names.items()}

    def revealer_credentials(self) -> Credentials:
        """Return the credentials with which the revealer calls the coordinator.

        Raises:
            KeysError: the folder has no epoch with a revealer.
            CertificateExpired: this machine's clock is outside the certificate's dates.
        """
        path = self.revealer.folder / CERTIFICATE_FILE
        certificate = read_public(path, max_bytes=MAX_BYTES, remedy="Run `fedrec keys rotate`.")
        issuer = read_issuer(self.public_key_path)
        found = self.revealer.load().credentials(certificate, issuer)
        found.check(str(path))
        return found

    def find_joiner(self, fingerprint: str) -> tuple[PublicIdentity, bytes]:
        """Return the applicant or former member with this beginning of a client id.

        The other value is its consent as a guest, if it gave one when it applied.

        Raises:
            KeysError: no client id, or more than one, begins like this.
        """
        words = dict(self.applicants())
        former = [m.identity for m in self.membership.members if not m.is_present]
        known = {identity.client_id: identity for identity in (*former, *words)}
        found = find(fingerprint, known.values(), "applicants and former members")
        return found, words.get(found, b"")

    def find_member(self, fingerprint: str) -> PublicIdentity:
        """Return the current member with this client id or beginning of one.

        Raises:
            KeysError: no client id, or more than one, begins like this.
        """
        return find(fingerprint, self.membership.present, "members")

    def applicants(self) -> tuple[tuple[PublicIdentity, bytes], ...]:
        """Return the applicants in the coordinator's last list and their consents as guests.

        The proofs of their keys are checked.
        """
        path = self.private / APPLICANTS_FILE
        if not path.exists():
            return ()
        raw = read_public(path, max_bytes=MAX_BYTES, remedy="Run `fedrec keys authority run`.")
        document = Document.parse(raw, APPLICANTS, str(path))
        entries = document.objects("applicants")
        document.finish()
        found = []
        for entry in entries:
            consent = entry.raw("consent")
            identity = PublicIdentity.from_fields(entry)
            identity.check_proof()
            found.append((identity, consent))
        return tuple(found)
