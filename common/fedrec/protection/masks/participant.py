"""A client's side of one round: advertise, share, mask, sign and give, and the state between."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from fedrec.errors import (
    BadSignature,
    KeysError,
    MalformedUpdate,
    RevealRefused,
    RoundError,
    SplitView,
)
from fedrec.identity.cells import check_whole
from fedrec.identity.document import Document, JsonValue, encode_bytes, write_document
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId, digest
from fedrec.protection.masks import messages
from fedrec.protection.masks.keys import (
    KeyAdvertisement,
    KeyList,
    RoundKeys,
    Words,
    add_mask,
    open_shares,
    pair_mask_key,
    private_key,
    seal_shares,
    self_commitment,
    self_mask_key,
)
from fedrec.protection.masks.messages import GivenShares, Inbox, ShareBundle, survivors_statement
from fedrec.protection.masks.shamir import SECRET_BYTES, SHARE_BYTES, split
from fedrec.protection.masks.terms import GraphParameters, MaskTerms, draw_holders, ring_neighbours

KIND = "fedrec mask participant"
Phase = Literal["advertised", "shared", "masked", "signed"]
_KEY_LIST_BYTES = 32 + 32 + 32 + 64


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class ParticipantState(Secret):
    """A participant's state. Secrets are deleted once no later step needs them.

    Attributes:
        phase: the last completed step.
        terms: the digest of the round's terms.
        keys: the private keys, or empty bytes once the vector is masked.
        key_list: all participants, or none before the shares are made.
        holders: the positions of the clients that hold this client's shares.
        self_seed: the seed of the self mask, or empty once the vector is masked.
        shared: the clients that sent shares, packed, or empty before the vector is masked.
        held: shares by owner: (of the self mask's seed, of the mask key). In a complete graph, it
            has its own from the start. It has those of others once the vector is masked.
        survivors: the signed set, packed, or empty before signing. It never changes afterwards.
    """

    phase: Phase
    terms: bytes
    keys: RoundKeys
    key_list: KeyList = field(default_factory=lambda: KeyList(()))
    holders: tuple[int, ...] = ()
    self_seed: bytes = b""
    shared: bytes = b""
    held: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    survivors: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the state, secrets included, for a file that only its owner can read."""
        held = [owner.to_bytes(4, "big") + b"".join(shares) for owner, shares in self.held.items()]
        fields: dict[str, JsonValue] = {
            "phase": self.phase,
            "terms": encode_bytes(self.terms),
            "mask": encode_bytes(self.keys.mask),
            "share": encode_bytes(self.keys.share),
            "key_list": _text(_pack_keys(one) for one in self.key_list.keys),
            "holders": _text(holder.to_bytes(4, "big") for holder in self.holders),
            "self_seed": encode_bytes(self.self_seed),
            "shared": encode_bytes(self.shared),
            "held": _text(held),
            "survivors": encode_bytes(self.survivors),
        }
        return write_document(KIND, fields)

    @classmethod
    def from_bytes(cls, raw: bytes) -> ParticipantState:
        """Read the state that `to_bytes` wrote.

        Raises:
            KeysError: the state is damaged.
        """
        document = Document.parse(raw, KIND, "The participant's state")
        phase = document.text("phase")
        if phase not in get_args(Phase):
            raise document.problem(f"is in the unknown phase {phase!r}")
        held = {}
        for row in _rows(document, "held", 4 + 2 * SHARE_BYTES):
            shares = row[4:]
            held[int.from_bytes(row[:4], "big")] = (shares[:SHARE_BYTES], shares[SHARE_BYTES:])
        state = cls(
            phase=cast(Phase, phase),
            terms=document.raw("terms", length=32),
            keys=RoundKeys(mask=document.raw("mask"), share=document.raw("share")),
            key_list=KeyList.of(
                _unpack_keys(row) for row in _rows(document, "key_list", _KEY_LIST_BYTES)
            ),
            holders=tuple(int.from_bytes(row, "big") for row in _rows(document, "holders", 4)),
            self_seed=document.raw("self_seed"),
            shared=document.raw("shared"),
            held=held,
            survivors=document.raw("survivors"),
        )
        document.finish()
        return state


def _pack_keys(one: KeyAdvertisement) -> bytes:
    return bytes.fromhex(one.client_id) + one.mask_key + one.share_key + one.signature


def _unpack_keys(row: bytes) -> KeyAdvertisement:
    return KeyAdvertisement(
        client_id=ClientId(row[:32].hex()),
        mask_key=row[32:64],
        share_key=row[64:96],
        signature=row[96:],
    )


def _text(rows: Iterable[bytes]) -> str:
    return encode_bytes(b"".join(rows))


def _rows(document: Document, name: str, length: int) -> list[bytes]:
    raw = document.raw(name)
    if len(raw) % length:
        raise KeysError(f"The participant's state is damaged: {name} is truncated.")
    return [raw[start : start + length] for start in range(0, len(raw), length)]


_SPLIT = "The coordinator told clients different things. Nothing was opened. Tell the data owners."


class Participant(Secret):
    """One client in one round, made by `begin` or `from_bytes`."""

    __slots__ = ("_client_id", "_state", "_terms")

    def __init__(self, terms: MaskTerms, client_id: ClientId, state: ParticipantState) -> None:
        if state.terms != _terms_digest(terms, client_id):
            raise KeysError("The stored state of a participant belongs to a different round.")
        self._terms = terms
        self._client_id = client_id
        self._state = state

    @classmethod
    def begin(cls, terms: MaskTerms, identity: Identity) -> tuple[Participant, KeyAdvertisement]:
        """Make the round's keys and advertise them. Call this only once a round."""
        keys = RoundKeys.create()
        state = ParticipantState(
            phase="advertised", terms=_terms_digest(terms, identity.client_id), keys=keys
        )
        return cls(terms, identity.client_id, state), keys.advertise(terms, identity)

    @classmethod
    def from_bytes(cls, terms: MaskTerms, client_id: ClientId, raw: bytes) -> Participant:
        """Resume from the state that `to_bytes` returned.

        Raises:
            KeysError: the bytes are damaged or belong to a different round.
        """
        return cls(terms, client_id, ParticipantState.from_bytes(raw))

    def to_bytes(self) -> bytes:
        """Return the state, secrets included, for a file that only this client can read."""
        return self._state.to_bytes()

    @property
    def phase(self) -> Phase:
        """The last completed step."""
        return self._state.phase

    @property
    def round_digest(self) -> bytes:
        """`KeyList.digest` of the list among which this client shared its secrets."""
        return self._round_digest

    def share(self, key_list: KeyList, roster: Roster, graph_seed: bytes = b"") -> ShareBundle:
        """Share two secrets among neighbours: the seed of the self mask, and the mask key.

        Args:
            key_list: all participants' advertisements, as relayed by the coordinator.
            roster: the epoch's verified roster.
            graph_seed: the seed of the ring, without effect under a malicious coordinator.

        Raises:
            NotInRoster, BadSignature: an advertisement isn't from a member for this round.
            PartialCell: some members of a cell's core are missing.
            RevealRefused: there are too few participants (see `Tolerance.fewest_listed`).
            SettingsError: no graph of this many clients is safe under the terms.
        """
        self._expect("advertised")
        state, terms = self._state, self._terms
        key_list.verify(terms, roster)
        own = key_list.position(self._client_id)
        advertised = key_list.keys[own]
        expected = state.keys.public_halves()
        if (advertised.mask_key, advertised.share_key) != expected:
            raise KeysError("The list of keys doesn't have the keys that this client advertised.")
        self._check_whole(roster, key_list.participants, "The list of keys")
        graph = terms.graph_of(len(key_list.keys))
        holders = _holders(graph, key_list, own, terms, graph_seed)
        return self._share(key_list, own, graph, holders)

    def _share(
        self, key_list: KeyList, own: int, graph: GraphParameters, holders: tuple[int, ...]
    ) -> ShareBundle:
        state = self._state
        round_digest = key_list.digest(self._terms)
        self_seed = secrets.token_bytes(SECRET_BYTES)
        places = [holder + 1 for holder in holders] + ([own + 1] if graph.complete else [])
        self_shares = split(self_seed, graph.threshold, places)
        key_shares = split(state.keys.mask, graph.threshold, places)
        private = private_key(state.keys.share)
        sealed = tuple(
            seal_shares(
                round_digest,
                private,
                key_list.keys[holder].share_key,
                owner=own,
                holder=holder,
                self_share=self_shares[holder + 1],
                key_share=key_shares[holder + 1],
            )
            for holder in holders
        )
        state.key_list = key_list
        state.holders = holders
        state.self_seed = self_seed
        if graph.complete:
            state.held = {own: (self_shares[own + 1], key_shares[own + 1])}
        state.phase = "shared"
        return ShareBundle(
            holders=holders,
            sealed=sealed,
            commitment=self_commitment(round_digest, self_seed, own=own),
        )

    def mask(self, inbox: Inbox, words: Words, *, n_wide: int) -> Words:
        """Return the words under the self mask and the masks of all partners, and store shares.

        Args:
            inbox: the message that the coordinator relayed.
            words: `MaskWords.encode` of the vector, which isn't changed.
            n_wide: `MaskWords.n_wide`.

        Raises:
            MalformedUpdate: the inbox isn't consistent.
            RevealRefused: too few neighbours remain.
            SplitView: all shares were made for a list of keys that differs from this client's list.
        """
        self._expect("shared")
        state, own = self._state, self._own
        shared = messages.unpack(inbox.shared, len(state.key_list.keys))
        self._check_sharers(shared)
        if own in inbox.owners or not shared.issuperset(inbox.owners):
            raise MalformedUpdate("A share came from a client that didn't share its secrets.")
        round_digest = self._round_digest
        held = self._open_all(inbox, round_digest)
        if inbox.owners and not held:
            raise SplitView(
                f"None of the shares of {len(inbox.owners)} clients can be opened. They were "
                f"made for a different list of keys from the one that this client received.",
                remedy=_SPLIT,
            )
        partners = (shared & set(state.holders)) | set(inbox.owners)
        masked = words.copy()
        add_mask(masked, self_mask_key(round_digest, state.self_seed, own=own), 1, n_wide=n_wide)
        private = private_key(state.keys.mask)
        for other in sorted(partners):
            public = state.key_list.keys[other].mask_key
            key = pair_mask_key(round_digest, private, public, own=own, other=other)
            add_mask(masked, key, 1 if own < other else -1, n_wide=n_wide)
        state.held |= held
        state.shared = inbox.shared
        # From here on, no party can remove the masks alone, not even this client.
        state.keys = RoundKeys(mask=b"", share=b"")
        state.self_seed = b""
        state.phase = "masked"
        return masked

    def _open_all(self, inbox: Inbox, round_digest: bytes) -> dict[int, tuple[bytes, bytes]]:
        state, own = self._state, self._own
        private = private_key(state.keys.share)
        held = {}
        for owner, sealed in zip(inbox.owners, inbox.sealed, strict=True):
            try:
                held[owner] = open_shares(
                    round_digest,
                    private,
                    state.key_list.keys[owner].share_key,
                    owner=owner,
                    holder=own,
                    sealed=sealed,
                )
            except (BadSignature, KeysError):
                # An owner that sends bad shares must not remove its neighbours from the round.
                continue
        return held

    def sign(self, survivors: bytes, identity: Identity, roster: Roster) -> bytes:
        """Sign the set of clients in the sum. Only the same set may be signed again.

        Args:
            survivors: the set of survivors, packed (`messages.pack`).
            roster: the epoch's verified roster.

        Raises:
            PartialCell: some members of a cell's core are missing.
            RevealRefused: the set contains a client that didn't share, or differs from the set
                signed before.
        """
        self._expect("masked", "signed")
        state = self._state
        if state.phase == "signed" and survivors != state.survivors:
            raise SplitView(
                "This client signed a different set of survivors for this round.", remedy=_SPLIT
            )
        count = len(state.key_list.keys)
        found = messages.unpack(survivors, count)
        if not found <= messages.unpack(state.shared, count):
            raise RevealRefused("The survivors include clients that never shared their secrets.")
        participants = state.key_list.participants
        self._check_whole(roster, (participants[one] for one in found), "The set of survivors")
        state.survivors = survivors
        state.phase = "signed"
        return identity.sign(survivors_statement(self._round_digest, state.shared, survivors))

    def give(self, signatures: Mapping[int, bytes], roster: Roster) -> GivenShares:
        """Give one share for every owner: of its mask key if it dropped out, else of its seed.

        Args:
            signatures: the signatures of the set that this client signed, by position.

        Raises:
            RevealRefused: fewer neighbours than the threshold, or fewer clients than the quorum,
                signed the same set.
            SplitView: a client signed a different set, or a different list of keys.
        """
        self._expect("signed")
        state, graph = self._state, self._graph
        survivors = messages.unpack(state.survivors, len(state.key_list.keys))
        agreeing = self._agreeing(signatures, roster)
        near = len(agreeing & set(state.holders)) + graph.complete
        if near < graph.threshold or len(agreeing) < graph.quorum:
            raise RevealRefused(
                f"{len(agreeing)} clients signed the same set of survivors, {near} of them "
                f"neighbours. The round needs {graph.quorum}, and {graph.threshold} neighbours.",
                remedy="Too many clients dropped out, or the coordinator gave them different sets.",
            )
        self_shares = {o: held[0] for o, held in state.held.items() if o in survivors}
        key_shares = {o: held[1] for o, held in state.held.items() if o not in survivors}
        return GivenShares(
            self_owners=tuple(sorted(self_shares)),
            self_shares=tuple(self_shares[owner] for owner in sorted(self_shares)),
            key_owners=tuple(sorted(key_shares)),
            key_shares=tuple(key_shares[owner] for owner in sorted(key_shares)),
        )

    def _agreeing(self, signatures: Mapping[int, bytes], roster: Roster) -> set[int]:
        """Return the clients that shared and signed the same set as this one, including itself."""
        state = self._state
        statement = survivors_statement(self._round_digest, state.shared, state.survivors)
        own = self._own
        shared = messages.unpack(state.shared, len(state.key_list.keys))
        signed = shared.intersection(signatures) - {own}
        agreeing = {own}
        for position in signed:
            member = roster.member(state.key_list.keys[position].client_id)
            with contextlib.suppress(BadSignature):
                verify(member.signing_key, statement, signatures[position])
                agreeing.add(position)
        if others := len(signed - agreeing):
            # An honest coordinator verifies a signature before it relays it.
            raise SplitView(
                f"{others} of {len(signed)} clients signed different survivors, or a "
                f"different list of keys, from those that this client received.",
                remedy=_SPLIT,
            )
        return agreeing

    def _check_sharers(self, found: frozenset[int]) -> None:
        """Refuse a set without this client, below the minimum or with too few neighbours."""
        graph = self._graph
        needed = max(graph.threshold, self._terms.minimum_summands)
        near = len(found & set(self._state.holders)) + graph.complete
        if self._own not in found:
            raise RevealRefused("This client isn't among those that shared.")
        if len(found) < needed or near < graph.threshold:
            raise RevealRefused(
                f"Only {len(found)} clients shared, {near} of them neighbours. A sum needs "
                f"{needed}, and {graph.threshold} neighbours.",
                remedy="Too many clients dropped out. The next round starts again.",
            )

    def _check_whole(self, roster: Roster, clients: Iterable[ClientId], what: str) -> None:
        least = self._terms.minimum_summands
        check_whole(roster.partition, tuple(clients), least=least, what=what)

    @property
    def _own(self) -> int:
        return self._state.key_list.position(self._client_id)

    @property
    def _graph(self) -> GraphParameters:
        return self._terms.graph_of(len(self._state.key_list.keys))

    @property
    def _round_digest(self) -> bytes:
        return self._state.key_list.digest(self._terms)

    def _expect(self, *phases: Phase) -> None:
        if self._state.phase not in phases:
            raise RoundError(
                f"This client can't take that step now. Its last one was {self.phase!r}.",
                remedy="Send the message again that was stored with that step.",
            )


def _terms_digest(terms: MaskTerms, client_id: ClientId) -> bytes:
    return digest("fedrec mask participant v1", *terms.parts(), client_id)


def _holders(
    graph: GraphParameters, key_list: KeyList, own: int, terms: MaskTerms, graph_seed: bytes
) -> tuple[int, ...]:
    if terms.tolerance.malicious and not graph.complete:
        return draw_holders(own, graph.n_clients, graph.degree)
    return ring_neighbours(graph_seed, key_list.participants, graph.degree)[own]
