"""The roster: the members of a federation, signed by the data owners' key authority."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from fedrec.errors import BadSignature, KeysError, NotInRoster, RosterBreaksCells, TooLarge
from fedrec.identity.cells import Cell, Partition, Standing, consents
from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.public import PublicIdentity, verify
from fedrec.ids import ClientId, canonical

KIND = "fedrec roster"
MAX_MEMBERS = 10_000
MAX_BYTES = 16 * 1024 * 1024
HEX = re.compile(r"(?:[0-9a-f]{2}){0,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The members of a key epoch and the conditions for opening their sums.

    Attributes:
        federation: the federation's name.
        epoch: counts from 1 and grows with every change of membership or keys.
        members: sorted by client id, without duplicates.
        minimum_summands: the smallest number of distinct members in an opened sum.
        protection: the protection's name.
        protection_fingerprint: hexadecimal digest of the protection's parameters.
        context_sha256: SHA-256 of the protection's keyless context.
        secrets_sha256: commitment to the epoch's secrets, so that only the authority can choose
            them. It hides them, because the group key has 256 random bits.
        authority_key: the authority's Ed25519 public key.
        ca_sha256: SHA-256 of the certificate (DER) that issued all others of the federation.
        previous: SHA-256 of the previous epoch's roster, or empty for the first.
        partition: the cells of members that are summed together.
        revealer: the authority's identity that alone holds the secret key and opens sums. None if
            members are key holders.
        signature: the authority's signature over `statement()`, or empty while unsigned.
    """

    federation: str
    epoch: int
    members: tuple[PublicIdentity, ...]
    minimum_summands: int
    protection: str
    protection_fingerprint: str
    context_sha256: bytes
    secrets_sha256: bytes
    authority_key: bytes
    ca_sha256: bytes
    previous: bytes = b""
    partition: Partition = field(default_factory=Partition)
    revealer: PublicIdentity | None = None
    signature: bytes = b""

    def __post_init__(self) -> None:
        problems = [
            text
            for text, wrong in (
                ("the federation has no name", not self.federation),
                ("the epoch is below 1", self.epoch < 1),
                (f"there are more than {MAX_MEMBERS} members", len(self.members) > MAX_MEMBERS),
                ("minimum_summands is below 1", self.minimum_summands < 1),
                (
                    "a fingerprint is not hexadecimal",
                    not HEX.fullmatch(self.protection_fingerprint),
                ),
                ("context_sha256 is not 32 bytes long", len(self.context_sha256) != 32),
                ("secrets_sha256 is not 32 bytes long", len(self.secrets_sha256) != 32),
                ("authority_key is not 32 bytes long", len(self.authority_key) != 32),
                ("ca_sha256 is not 32 bytes long", len(self.ca_sha256) != 32),
                ("previous is not 32 bytes long", len(self.previous) not in (0, 32)),
                ("signature is not 64 bytes long", len(self.signature) not in (0, 64)),
                ("a client, an exchange or a TLS key appears twice", self._has_duplicates()),
            )
            if wrong
        ]
        if problems:
            raise KeysError(
                f"The roster is invalid: {'; '.join(problems)}.",
                remedy="Make a new epoch with `fedrec keys`.",
            )
        object.__setattr__(self, "members", tuple(sorted(self.members, key=_by_client_id)))

    def statement(self) -> bytes:
        """Return the signed bytes: every field except the signature."""
        return canonical("fedrec roster v2", replace(self, signature=b"").to_json())

    def digest(self) -> bytes:
        """Return the digest by which the next epoch's roster refers to this one."""
        return hashlib.sha256(self.to_json()).digest()

    def verify(self, pinned_authority_key: bytes) -> None:
        """Check that the authority pinned by this client signed the roster.

        Raises:
            BadSignature: another key signed it, or no key did.
        """
        if self.authority_key != pinned_authority_key:
            raise BadSignature(
                f"The roster is from the authority {self.authority_key.hex()[:16]}..., but this "
                f"client trusts {pinned_authority_key.hex()[:16]}...",
                remedy="Ask the data owners, not the coordinator, for the authority's key.",
            )
        verify(pinned_authority_key, self.statement(), self.signature)

    def contains(self, client_id: ClientId) -> bool:
        """Return whether a client is a member."""
        return self._find(client_id) is not None

    def member(self, client_id: ClientId) -> PublicIdentity:
        """Return a member's public keys.

        Raises:
            NotInRoster: the client is not a member.
        """
        found = self._find(client_id)
        if found is None:
            raise NotInRoster(
                f"The client {client_id[:16]}... is not among the {len(self.members)} members of "
                f"epoch {self.epoch}.",
                remedy="Send its identity.pub.json to the key authority and make a new epoch.",
            )
        return found

    @property
    def unplaced(self) -> tuple[PublicIdentity, ...]:
        """The members that are in no sum yet, because a new cell needs more of them."""
        if not self.partition.cell_size:
            return ()
        placed = self.partition.placed
        return tuple(one for one in self.members if one.client_id not in placed)

    def why_unplaced(self, joining: int = 0) -> str:
        """Return why some members are in no sum yet and what to do, or empty if all are.

        Args:
            joining: newcomers that are about to be added.
        """
        size, known = self.partition.cell_size, self.partition.standing
        standings = [known(one.client_id) for one in self.unplaced]
        fresh = sum(one is None or not (one.since or one.consent) for one in standings)
        lacking = size - fresh - joining
        if lacking <= 0:
            return ""
        return (
            f"newcomers are summed with at least {size - 1} others that joined since the last cell "
            f"was made: {lacking} more {'has' if lacking == 1 else 'have'} to join. To invite one, "
            "run `fedrec provision --add NAME` on the key authority's machine"
        )

    @property
    def key_holder(self) -> Literal["members", "authority"]:
        """The holder of the protection's secret key, as a value of `protection.key_holder`."""
        return "members" if self.revealer is None else "authority"

    @property
    def holders(self) -> tuple[PublicIdentity, ...]:
        """All parties that get secrets of the epoch: the members and the revealer."""
        return self.members if self.revealer is None else (*self.members, self.revealer)

    def holder(self, client_id: ClientId) -> PublicIdentity:
        """Return the public keys of a member, or of the revealer.

        Raises:
            NotInRoster: the client is neither.
        """
        if self.revealer is not None and self.revealer.client_id == client_id:
            return self.revealer
        return self.member(client_id)

    def to_json(self) -> bytes:
        """Return the canonical JSON."""
        # Older rosters without a revealer lack the field, and their signatures cover that form.
        alone: dict[str, JsonValue] = (
            {} if self.revealer is None else {"revealer": self.revealer.fields()}
        )
        fields: dict[str, JsonValue] = alone | {
            "federation": self.federation,
            "epoch": self.epoch,
            "members": [member.fields() for member in self.members],
            "minimum_summands": self.minimum_summands,
            "protection": self.protection,
            "protection_fingerprint": self.protection_fingerprint,
            "context_sha256": encode_bytes(self.context_sha256),
            "secrets_sha256": encode_bytes(self.secrets_sha256),
            "authority_key": encode_bytes(self.authority_key),
            "ca_sha256": encode_bytes(self.ca_sha256),
            "previous": encode_bytes(self.previous),
            "cell_size": self.partition.cell_size,
            "cells": [cell.fields() for cell in self.partition.cells],
            "standings": [one.fields() for one in self.partition.standings],
            "signature": encode_bytes(self.signature),
        }
        return write_document(KIND, fields)

    @classmethod
    def from_json(cls, raw: bytes) -> Roster:
        """Parse the output of `to_json`, without checking the signature.

        Raises:
            KeysError: the document is damaged, not canonical, or lists a client twice.
            TooLarge: the document is above the size limit.
        """
        if len(raw) > MAX_BYTES:
            raise TooLarge(f"A roster of {len(raw)} bytes is above the limit of {MAX_BYTES}.")
        document = Document.parse(raw, KIND, "The roster")
        alone = document.mapping("revealer") if "revealer" in document.names() else None
        found = cls(
            federation=document.text("federation"),
            epoch=document.integer("epoch"),
            members=tuple(PublicIdentity.from_fields(m) for m in document.objects("members")),
            minimum_summands=document.integer("minimum_summands"),
            protection=document.text("protection"),
            protection_fingerprint=document.text("protection_fingerprint"),
            context_sha256=document.raw("context_sha256"),
            secrets_sha256=document.raw("secrets_sha256"),
            authority_key=document.raw("authority_key"),
            ca_sha256=document.raw("ca_sha256"),
            previous=document.raw("previous"),
            partition=Partition(
                cell_size=document.integer("cell_size"),
                cells=tuple(map(Cell.from_fields, document.objects("cells"))),
                standings=tuple(map(Standing.from_fields, document.objects("standings"))),
            ),
            revealer=None if alone is None else PublicIdentity.from_fields(alone),
            signature=document.raw("signature"),
        )
        document.finish()
        if found.to_json() != raw:
            raise document.problem("is not in canonical form")
        return found

    def _find(self, client_id: ClientId) -> PublicIdentity | None:
        index = bisect_left(self.members, client_id, key=_by_client_id)
        if index < len(self.members) and self.members[index].client_id == client_id:
            return self.members[index]
        return None

    def _has_duplicates(self) -> bool:
        clients = {holder.client_id for holder in self.holders}
        exchange_keys = {holder.exchange_key for holder in self.holders}
        tls_keys = {holder.tls_key for holder in self.holders}
        return min(len(clients), len(exchange_keys), len(tls_keys)) < len(self.holders)


def _by_client_id(member: PublicIdentity) -> ClientId:
    return member.client_id


_MOST_TOLD = 3


def check_cells(old: Roster | None, new: Roster) -> None:
    """Refuse a roster whose cells would let combined sums isolate fewer than a cell's clients.

    Some rules hold for each roster, others compare it with the previous one. Clients, coordinator
    and key authority check every new roster with this function.

    Args:
        old: the newest known roster, or None for the first. Rosters in between may be missing,
            because the rules also hold across several epochs.

    Raises:
        RosterBreaksCells: the roster breaks a rule. The message lists the first few.
    """
    problems = list(_alone(new))
    if old is not None:
        problems += _following(old, new)
    if problems:
        more = f" and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise RosterBreaksCells(
            f"The roster of epoch {new.epoch} breaks the rules of cells: "
            f"{'; '.join(problems[:_MOST_TOLD])}{more}.",
            remedy="Nothing is uploaded under it. Ask the key authority, not the coordinator, for "
            "a roster that continues the previous one (`fedrec keys rotate`).",
        )


def _alone(roster: Roster) -> Iterator[str]:
    """Yield the broken rules that concern this roster alone."""
    found = roster.partition
    members = {member.client_id for member in roster.members}
    replaced = [one.replaces for one in found.standings if one.replaces]
    if len(set(replaced)) < len(replaced) or members & set(replaced):
        yield "two client ids belong to one party"
    for one in found.standings:
        if one.replaces and found.since(one.replaces) not in (0, one.since):
            yield f"{_short(one.client_id)} does not have the place of the client that it replaces"
    seen: set[ClientId] = set()
    fresh: set[ClientId] = set()
    exposed = found.parties([m for cell in found.cells for m in (*cell.guests, *cell.left)])
    for cell in found.cells:
        all_clients = cell.all_clients
        known = [found.since(one) for one in all_clients]
        if len(set(all_clients)) < len(all_clients) or not all(known):
            yield f"cell {cell.id} lists a client twice or without a standing"
        if cell.since > roster.epoch or any(found.since(one) > cell.since for one in cell.core):
            yield (
                f"cell {cell.id} has an epoch after the roster's epoch, or before one of its "
                "members joined a cell"
            )
        if cell.state != "retired":
            here = {*cell.core, *cell.guests}
            if here & seen or not here <= members:
                yield f"cell {cell.id} has clients that are in other cells or are not members"
            seen |= here
            for guest in cell.guests:
                if not _consents(roster, guest):
                    yield (
                        f"{_short(guest)} is a guest of cell {cell.id} without its signed consent"
                    )
        own = found.parties([one for one in cell.core if found.since(one) == cell.since])
        own -= exposed
        if len(own - fresh) < found.cell_size:
            yield (
                f"cell {cell.id} has {len(own - fresh)} members that were never in another cell "
                f"and never left, expected at least {found.cell_size}"
            )
        fresh |= own


def _following(old: Roster, new: Roster) -> Iterator[str]:
    """Yield the broken rules that concern what changed since the previous roster."""
    before, after = old.partition, new.partition
    if not (before.cell_size or after.cell_size):
        return
    if new.epoch <= old.epoch:
        if new != old:
            yield f"it does not come after epoch {old.epoch}"
        return
    if new.epoch == old.epoch + 1 and new.previous != old.digest():
        yield "it names a different previous roster"
    if before.cell_size and after.cell_size != before.cell_size:
        yield f"cell_size was {before.cell_size} and is {after.cell_size}"
    for one in before.standings:
        now = after.standing(one.client_id)
        if one.since and (now is None or now.since != one.since or now.replaces != one.replaces):
            yield f"it changes the epoch since which {_short(one.client_id)} has been in a cell"
    present = {cell.id: cell for cell in after.cells}
    for cell in before.cells:
        found = present.pop(cell.id, None)
        if found is None or found.since != cell.since:
            yield f"cell {cell.id} is gone"
            continue
        core, guests, left = (after.parties(ids) for ids in (found.core, found.guests, found.left))
        was_core, was_guest = after.parties(cell.core), after.parties(cell.guests)
        if not core <= was_core or not was_core <= core | guests | left:
            yield f"the core of cell {cell.id} changed by more than the members that left"
        if not was_guest <= guests | left or not after.parties(cell.left) <= left:
            yield f"cell {cell.id} dropped a client from the list of those that left"
        if cell.state == "retired" and found != cell:
            yield f"cell {cell.id} was retired but changed"
    yield from (
        f"cell {cell.id} claims epoch {cell.since}, which is before epoch {old.epoch}"
        for cell in present.values()
        if cell.since <= old.epoch
    )


def _consents(roster: Roster, client_id: ClientId) -> bool:
    found = roster.partition.standing(client_id)
    if found is None or not roster.contains(client_id):
        return False
    return consents(roster.federation, roster.member(client_id).signing_key, found.consent)


def _short(client_id: ClientId) -> str:
    return f"{client_id[:16]}"
