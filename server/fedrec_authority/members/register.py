"""The authority's own record of current and former members, and of the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedrec.errors import KeysError
from fedrec.identity.cells import Standing
from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.public import PublicIdentity
from fedrec.ids import ClientId
from fedrec.plan.agreement import plan_from_json

KIND = "fedrec authority membership"
FEWEST_CHARS = 16
"""The number of hexadecimal characters of a fingerprint that people compare: 64 bits, which no
attacker can match.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A current or former member.

    Attributes:
        added_at: the time of joining, in seconds since the Unix epoch.
        removed_at: the time of removal, or 0 for a current member.
        users_cap: the maximum number of users that it may have, or 0 for the plan's limit.
        replaces: an earlier id of the same party.
        consent: its signed consent to be missing from sums, or empty for a core member.
    """

    identity: PublicIdentity
    added_at: int
    removed_at: int = 0
    users_cap: int = 0
    replaces: ClientId | None = None
    consent: bytes = b""

    @property
    def client_id(self) -> ClientId:
        """The fingerprint of the member's signing key."""
        return self.identity.client_id

    @property
    def is_present(self) -> bool:
        """Whether the next epoch lists it."""
        return not self.removed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegister:
    """The record of members, replaced as a whole.

    Attributes:
        plan_json: canonical JSON of the plan for which epochs are made.
        n_items: size of the catalogue.
        last_epoch: the highest epoch number so far, or 0.
        is_changed: whether members changed since that epoch.
        cell_size: the size of the federation's cells, or 0 if there are no cells.
        members: current and former members, sorted by client id.
    """

    plan_json: bytes
    n_items: int
    last_epoch: int = 0
    is_changed: bool = False
    cell_size: int = 0
    members: tuple[MemberRecord, ...] = ()

    @property
    def present(self) -> tuple[PublicIdentity, ...]:
        """The members that the next epoch lists."""
        return tuple(member.identity for member in self.members if member.is_present)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """The standings of current members for the next roster, without their cells' epochs."""
        return tuple(
            Standing(
                client_id=member.client_id,
                users_cap=member.users_cap,
                replaces=member.replaces,
                consent=member.consent,
            )
            for member in self.members
            if member.is_present
        )

    @property
    def core(self) -> int:
        """The number of current members that are not guests."""
        return sum(member.is_present and not member.consent for member in self.members)

    def too_few(self) -> str:
        """Return the reason why no round can open with so few members, or empty if one can.

        Guests count towards a round's minimum only without cells.
        """
        plan = plan_from_json(self.plan_json)
        needed = plan.fewest_summands
        there = self.core if plan.has_cells else len(self.present)
        if there < needed:
            return (
                f"Fewer than the {needed} that the plan needs: no round opens before others join."
            )
        lacking = self.lacking_core()
        return f"No round opens: {lacking}." if lacking else ""

    def lacking_core(self) -> str:
        """Return the reason why no round can open with only guests, or empty if one can."""
        if self.core >= self.cell_size:
            return ""
        return (
            f'client.when_away is "go_on" for {len(self.present) - self.core} of '
            f"{len(self.present)} members. At least {self.cell_size} must have "
            '"wait": only these are in every sum. Invite others'
        )

    def with_member(
        self, identity: PublicIdentity, now: int, *, users_cap: int = 0, consent: bytes = b""
    ) -> MemberRegister:
        """Return the membership with one more member, or with a member's new exchange key.

        Args:
            users_cap: the maximum number of users that it may have, or 0 to keep the limit.
            consent: its verified consent. A guest stays a guest.

        Raises:
            KeysError: the party is already a member with the same keys.
        """
        before = {member.client_id: member for member in self.members}
        known = before.get(identity.client_id)
        if known is not None and known.is_present and known.identity == identity:
            raise KeysError(
                f"{identity.client_id[:FEWEST_CHARS]} is already a member.",
                remedy="See `fedrec keys roster list`.",
            )
        same = known or MemberRecord(identity=identity, added_at=now)
        before[identity.client_id] = replace(
            same,
            identity=identity,
            added_at=now,
            removed_at=0,
            users_cap=users_cap or same.users_cap,
            consent=consent or same.consent,
        )
        return self._of(before.values())

    def with_guest(self, client_id: ClientId, consent: bytes) -> MemberRegister:
        """Return the membership with one more guest, whose consent was verified."""
        return self._of(
            replace(member, consent=consent) if member.client_id == client_id else member
            for member in self.members
        )

    def without_member(self, client_id: ClientId, now: int) -> MemberRegister:
        """Return the membership with a current member turned into a former one."""
        return self._of(
            replace(member, removed_at=now) if member.client_id == client_id else member
            for member in self.members
        )

    def with_successor(self, old: ClientId, identity: PublicIdentity, now: int) -> MemberRegister:
        """Return the membership with new keys and a new id for a current member.

        Raises:
            KeysError: the new id belongs or belonged to a member.
        """
        if any(member.client_id == identity.client_id for member in self.members):
            raise KeysError(
                f"{identity.client_id[:FEWEST_CHARS]} is or was a member itself.",
                remedy="A party that replaces its keys makes new ones (`fedrec client identity`).",
            )
        before = next(member for member in self.members if member.client_id == old)
        # Its consent as a guest was signed with the old key.
        made = MemberRecord(
            identity=identity, added_at=now, users_cap=before.users_cap, replaces=old
        )
        return self._of((*self.without_member(old, now).members, made))

    def of_exactly(self, identities: Iterable[PublicIdentity], now: int) -> MemberRegister:
        """Return the membership with exactly these members. All others become former members."""
        wanted = {identity.client_id: identity for identity in identities}
        found = self
        for member in self.members:
            if member.is_present and member.client_id not in wanted:
                found = found.without_member(member.client_id, now)
        for identity in wanted.values():
            if identity not in found.present:
                found = found.with_member(identity, now)
        return found

    def _of(self, members: Iterable[MemberRecord]) -> MemberRegister:
        ordered = tuple(sorted(members, key=lambda member: member.client_id))
        return replace(self, members=ordered, is_changed=True)

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        members: list[JsonValue] = [
            {
                "identity": member.identity.to_json().decode("ascii"),
                "added_at": member.added_at,
                "removed_at": member.removed_at,
                "users_cap": member.users_cap,
                "replaces": member.replaces or "",
                "consent": encode_bytes(member.consent),
            }
            for member in self.members
        ]
        fields: dict[str, JsonValue] = {
            "plan": encode_bytes(self.plan_json),
            "n_items": self.n_items,
            "last_epoch": self.last_epoch,
            "is_changed": int(self.is_changed),
            "cell_size": self.cell_size,
            "members": members,
        }
        return write_document(KIND, fields)

    @classmethod
    def from_json(cls, raw: bytes, name: str) -> MemberRegister:
        """Parse the output of `to_json` and check members' proofs.

        Raises:
            KeysError: the document is damaged.
            BadSignature: a member's key was replaced.
        """
        document = Document.parse(raw, KIND, name)
        found = cls(
            plan_json=document.raw("plan"),
            n_items=document.integer("n_items", minimum=1),
            last_epoch=document.integer("last_epoch"),
            is_changed=bool(document.integer("is_changed")),
            cell_size=document.integer("cell_size"),
            members=tuple(_member(entry) for entry in document.objects("members")),
        )
        document.finish()
        return found


def find(fingerprint: str, identities: Iterable[PublicIdentity], what: str) -> PublicIdentity:
    """Return the identity whose client id begins with a person's input.

    Args:
        fingerprint: the input, at least `FEWEST_CHARS` hexadecimal characters. Spaces do not count.
        what: a noun for the identities, for errors.

    Raises:
        KeysError: the input is too short, or matches none or more than one. The message lists the
            candidates.
    """
    wanted = "".join(fingerprint.split()).lower()
    if len(wanted) < FEWEST_CHARS or not set(wanted) <= set("0123456789abcdef"):
        raise KeysError(
            f"{fingerprint!r} is not a fingerprint of at least {FEWEST_CHARS} hexadecimal "
            "characters.",
            remedy="Pass as much of the client id as you compared with its owner.",
        )
    known = sorted(identities, key=lambda identity: identity.client_id)
    found = [identity for identity in known if identity.client_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    shown = found or known
    listed = "; ".join(f"{each.client_id} {each.label}".strip() for each in shown)
    problem = "more than one" if found else "none"
    raise KeysError(
        f"{wanted} matches {problem} of the {what}: {listed or 'there are none'}.",
        remedy="Compare the client id with its owner again, and pass more of it.",
    )


def _member(entry: Document) -> MemberRecord:
    found = MemberRecord(
        identity=PublicIdentity.from_json(entry.json_text("identity").encode()),
        added_at=entry.integer("added_at"),
        removed_at=entry.integer("removed_at"),
        users_cap=entry.integer("users_cap"),
        replaces=ClientId(entry.text("replaces")) or None,
        consent=entry.raw("consent"),
    )
    entry.finish()
    return found
