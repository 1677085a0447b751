"""The coordinator's side of one round: collects what participants send, and unmasks the sum.

Five steps, each closed before the next opens: keys, shares, vectors, signatures, answers. What
arrives is checked whole before anything changes; the same message twice counts once, another one
of the same client is refused, and so is what arrives late. Nothing here is secret until answers
arrive, and they lead to the sum only. A round's collector is made again after a crash by handing
it the stored messages, and closing the same steps in the same order.

What it does not give: it cannot tell whether a client masked the vector that it should have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Literal, TypeVar

import numpy as np

from fedrec.errors import ConflictingUpload, MalformedUpdate, RoundClosed, RoundError
from fedrec.identity.cells import check_whole
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.protection.masks import messages
from fedrec.protection.masks.keys import (
    WORD,
    KeyAdvertisement,
    KeyList,
    Words,
    add_mask,
    add_words,
    pair_mask_key,
    private_key,
    public_key,
    self_commitment,
    self_mask_key,
)
from fedrec.protection.masks.messages import GivenShares, Inbox, ShareBundle, survivors_statement
from fedrec.protection.masks.shamir import recover
from fedrec.protection.masks.terms import GraphParameters, MaskTerms, ring_neighbours
from fedrec.protection.masks.words import MaskWords
from fedrec.protection.vector import Integers

Step = Literal["keys", "shares", "vectors", "signatures", "answers"]
Mask = tuple[Callable[[], bytes], int]
"""The key of a mask, made when it is needed, and the sign that takes it off."""
Content = TypeVar("Content")
Name = TypeVar("Name", int, ClientId)


class Collector:
    """Collects one round.

    Args:
        terms: the round's.
        roster: of the epoch.
        words: reads messages.
        graph_seed: of the ring, drawn before the round opens; without effect where the
            coordinator is taken for malicious.

    Attributes:
        step: what is being collected.
        key_list: the participants' keys, once the list is closed.
        round_digest: `KeyList.digest` of the closed list; every message is bound to it.
        survivors: packed, once the vectors are closed.
    """

    def __init__(
        self, terms: MaskTerms, roster: Roster, words: MaskWords, *, graph_seed: bytes = b""
    ) -> None:
        self._terms = terms
        self._roster = roster
        self._words = words
        self._graph_seed = graph_seed
        self.step: Step = "keys"
        self._advertised: dict[ClientId, KeyAdvertisement] = {}
        self.key_list = KeyList(())
        self.round_digest = b""
        self._ring: tuple[tuple[int, ...], ...] = ()
        self._bundles: dict[int, ShareBundle] = {}
        self._inboxes: dict[int, dict[int, bytes]] = {}
        self._shared = b""
        self._vectors: dict[int, bytes] = {}
        self._total = np.zeros(words.n_words, dtype=WORD)
        self.survivors = b""
        self._signatures: dict[int, bytes] = {}
        self._given: dict[int, GivenShares] = {}

    @property
    def n_vectors(self) -> int:
        """How many vectors are in the sum."""
        return len(self._vectors)

    @property
    def graph(self) -> GraphParameters:
        """The graph's numbers, once the list of keys is closed."""
        return self._terms.graph_of(len(self.key_list.keys))

    def add_keys(self, advertisement: KeyAdvertisement) -> None:
        """Take a client's keys.

        Raises:
            NotInRoster, BadSignature: when no member made them for this round.
            MalformedUpdate: when nobody could use them.
        """
        self._expect("keys")
        advertisement.verify(self._terms, self._roster)
        advertisement.check_usable()
        _put(self._advertised, advertisement.client_id, advertisement)

    def close_keys(self) -> KeyList:
        """Return the participants, for all of them to see.

        Raises:
            RoundError: when they are too few.
            RevealRefused: when no client would take part in so short a list.
            KeysError: when a key appears twice.
            SettingsError: when no graph of so many clients withstands what the terms say.
        """
        self._expect("keys")
        count = len(self._advertised)
        if count < self._terms.minimum_summands or count > self._words.plan.max_summands:
            raise RoundError(
                f"{count} clients advertised keys; the round needs "
                f"{self._terms.minimum_summands} to {self._words.plan.max_summands}."
            )
        key_list = KeyList.of(self._advertised.values())
        graph = self._terms.graph_of(count)
        if graph.complete or not self._terms.tolerance.malicious:
            self._ring = ring_neighbours(self._graph_seed, key_list.participants, graph.degree)
        self.key_list = key_list
        self.round_digest = key_list.digest(self._terms)
        self.step = "shares"
        return key_list

    def add_shares(self, client_id: ClientId, bundle: ShareBundle) -> None:
        """Take a participant's encrypted shares.

        Raises:
            MalformedUpdate: when they are for others than its neighbours.
        """
        self._expect("shares")
        own = self.key_list.position(client_id)
        holders = bundle.holders
        if self._ring and holders != self._ring[own]:
            raise MalformedUpdate("The shares are for others than the client's neighbours.")
        if len(holders) != self.graph.degree or own in holders:
            raise MalformedUpdate(f"Shares are for {self.graph.degree} other clients.")
        if holders[-1] >= self.graph.n_clients:
            raise MalformedUpdate("A share is for nobody in the list of keys.")
        _put(self._bundles, own, bundle)

    def close_shares(self) -> frozenset[int]:
        """Return who goes on: those whose shares arrived.

        Raises:
            RoundError: when somebody has too few neighbours left, so that nobody can go on.
        """
        self._expect("shares")
        shared = frozenset(self._bundles)
        self._check_alive(shared, "shared their secrets")
        inboxes: dict[int, dict[int, bytes]] = {own: {} for own in shared}
        for owner in sorted(self._bundles):
            bundle = self._bundles[owner]
            for holder, sealed in zip(bundle.holders, bundle.sealed, strict=True):
                if holder in inboxes:
                    inboxes[holder][owner] = sealed
        self._inboxes = inboxes
        self._shared = messages.pack(shared, self.graph.n_clients)
        self.step = "vectors"
        return shared

    def inbox(self, client_id: ClientId) -> Inbox:
        """Return what a participant gets to mask with, once the shares are closed.

        Raises:
            RoundClosed: when the participant is not among those who go on.
        """
        found = self._inboxes.get(self.key_list.position(client_id))
        if found is None:
            raise RoundClosed("This client's shares did not arrive in time.")
        return Inbox(shared=self._shared, owners=tuple(found), sealed=tuple(found.values()))

    def add_vector(self, client_id: ClientId, message: bytes) -> None:
        """Add a participant's masked vector to the sum.

        Args:
            message: `MaskWords.message` of the masked words.

        Raises:
            MalformedUpdate: for another length, plan or kind.
            RoundClosed: when it comes too late, or its shares did.
        """
        self._expect("vectors")
        own, words = self._sharer(client_id), self._words.open(message)
        if _put(self._vectors, own, sha256(message).digest()):
            add_words(self._total, words, 1, n_wide=self._words.n_wide)

    def close_vectors(self, left_out: Collection[ClientId] = ()) -> bytes:
        """Return the survivors, packed, for everybody who is still there to sign.

        Args:
            left_out: who is still there, but whose vectors are not in the sum, because others of
                their cells dropped out.

        Raises:
            RoundError: when too few are left to unmask the sum; no secret is asked for then.
            PartialCell: when no participant would sign for those whose vectors were added.
        """
        self._expect("vectors")
        survivors = frozenset(self._vectors)
        alive = survivors.union(map(self.key_list.position, left_out))
        self._check_alive(alive, "sent their vectors", of=frozenset(self._bundles))
        check_whole(
            self._roster.partition,
            [self.key_list.participants[own] for own in survivors],
            least=self._terms.minimum_summands,
            what="The set of survivors",
        )
        self.survivors = messages.pack(survivors, self.graph.n_clients)
        self.step = "signatures"
        return self.survivors

    def add_signature(self, client_id: ClientId, signature: bytes) -> None:
        """Take the signature of somebody who shared, whether its vector is in the sum or not.

        Raises:
            BadSignature: when it is not over the set that `close_vectors` returned.
        """
        self._expect("signatures")
        own = self._sharer(client_id)
        statement = survivors_statement(self.round_digest, self._shared, self.survivors)
        verify(self._roster.member(client_id).signing_key, statement, signature)
        _put(self._signatures, own, signature)

    def close_signatures(self) -> None:
        """Let answers come.

        Raises:
            RoundError: when no participant could accept so few signatures.
        """
        self._expect("signatures")
        self._check_alive(frozenset(self._signatures), "signed", of=frozenset(self._bundles))
        if len(self._signatures) < self.graph.quorum:
            raise RoundError(
                f"{len(self._signatures)} signed the survivors, {self.graph.quorum} are needed."
            )
        self.step = "answers"

    def signatures_for(self, client_id: ClientId) -> dict[int, bytes]:
        """Return the signatures that a participant needs: its neighbours', or a quorum of all."""
        own = self._sharer(client_id)
        if self._terms.tolerance.malicious:
            return dict(self._signatures)
        holders = self._bundles[own].holders
        return {h: self._signatures[h] for h in holders if h in self._signatures}

    def add_answer(self, client_id: ClientId, given: GivenShares) -> None:
        """Take the shares that somebody gives who signed.

        Raises:
            MalformedUpdate: when they are of others than were entrusted to it, or of the kind
                that must not be given, or none at all.
        """
        self._expect("answers")
        own = self._sharer(client_id)
        entrusted = set(self._inboxes[own]) | ({own} if self.graph.complete else set())
        stayed = set(given.self_owners)
        left = set(given.key_owners)
        if not (stayed <= entrusted & self._vectors.keys() and left <= entrusted):
            raise MalformedUpdate("Shares are given that were not entrusted to this client.")
        if left & self._vectors.keys():
            raise MalformedUpdate("Shares of a survivor's mask key are given.")
        if entrusted and not stayed | left:
            # One that can open nothing of what it was sent gives none either; it is not missed.
            raise MalformedUpdate(
                f"The answer gives none of the shares of {len(entrusted)} clients that were "
                "entrusted to this one."
            )
        _put(self._given, own, given)

    @property
    def can_unmask(self) -> bool:
        """Whether enough shares of every secret arrived."""
        if self.step != "answers":
            return False
        needed = self.graph.threshold
        return all(len(shares) >= needed for shares in self._shares().values())

    def unmask(self, *, threads: int = 2) -> Integers:
        """Return the exact sum of the survivors' vectors, int64 of shape (length,).

        Raises:
            RoundError: when a secret cannot be put together.
            RevealRefused: when no honest vectors add up to the sum.
        """
        self._expect("answers")
        masks = [
            mask
            for owner, shares in self._shares().items()
            for mask in (self._own if owner in self._vectors else self._common)(owner, shares)
        ]
        n_wide, total = self._words.n_wide, self._total.copy()

        def added_up(part: Sequence[Mask]) -> Words:
            words = np.zeros(len(total), dtype=WORD)
            for make_key, sign in part:
                add_mask(words, make_key(), sign, n_wide=n_wide)
            return words

        # Ciphers and sums run outside the interpreter's lock.
        with ThreadPoolExecutor(threads) as pool:
            for words in pool.map(added_up, [masks[start::threads] for start in range(threads)]):
                add_words(total, words, 1, n_wide=n_wide)
        return self._words.decode(total, len(self._vectors))

    def _shares(self) -> dict[int, dict[int, bytes]]:
        """Return by owner, and place, what was given: of a seed or of a mask key."""
        shares: dict[int, dict[int, bytes]] = {owner: {} for owner in sorted(self._bundles)}
        for holder, given in self._given.items():
            for owner, share in zip(given.self_owners, given.self_shares, strict=True):
                shares[owner][holder + 1] = share
            for owner, share in zip(given.key_owners, given.key_shares, strict=True):
                shares[owner][holder + 1] = share
        return shares

    def _own(self, owner: int, shares: dict[int, bytes]) -> Iterator[Mask]:
        """Yield a survivor's own mask, which is still in the sum."""
        commitment = self._bundles[owner].commitment

        def is_right(seed: bytes) -> bool:
            return self_commitment(self.round_digest, seed, own=owner) == commitment

        seed = recover(shares, self.graph.threshold, is_right)
        yield partial(self_mask_key, self.round_digest, seed, own=owner), -1

    def _common(self, owner: int, shares: dict[int, bytes]) -> Iterator[Mask]:
        """Yield the masks that survivors had in common with a client that dropped out."""
        keys = self.key_list.keys

        def is_right(raw: bytes) -> bool:
            return public_key(raw) == keys[owner].mask_key

        private = private_key(recover(shares, self.graph.threshold, is_right))
        near = set(self._bundles[owner].holders) | self._inboxes[owner].keys()
        for other in near & self._vectors.keys():
            make_key = partial(
                pair_mask_key, self.round_digest, private, keys[other].mask_key,
                own=owner, other=other,
            )  # fmt: skip
            # The partner added its half if its position is the lower one.
            yield make_key, -1 if other < owner else 1

    def _sharer(self, client_id: ClientId) -> int:
        own = self.key_list.position(client_id)
        if own not in self._bundles:
            raise RoundClosed("This client's shares did not arrive in time.")
        return own

    def _check_alive(
        self, alive: frozenset[int], what: str, of: frozenset[int] | None = None
    ) -> None:
        """Refuse to go on unless the secrets of all in ``of`` can still be put together."""
        graph = self.graph
        needed = max(graph.threshold, self._terms.minimum_summands)
        if len(alive) < needed:
            raise RoundError(
                f"{len(alive)} of {graph.n_clients} clients {what}; the round needs {needed}.",
                remedy="Too many dropped out; the next round starts afresh.",
            )
        for owner in of if of is not None else alive:
            own = graph.complete and owner in alive
            near = len(alive.intersection(self._bundles[owner].holders)) + own
            if near < graph.threshold:
                raise RoundError(
                    f"Of the neighbours of a client {near} {what}; {graph.threshold} are needed.",
                    remedy="Too many dropped out; the next round starts afresh.",
                )

    def _expect(self, step: Step) -> None:
        if self.step != step:
            raise RoundClosed(f"The round collects {self.step}, not {step}.")


def _put(store: dict[Name, Content], name: Name, content: Content) -> bool:
    """Keep the first content of a name; tell whether it is new.

    Raises:
        ConflictingUpload: when another one is kept already.
    """
    if name not in store:
        store[name] = content
        return True
    if store[name] != content:
        raise ConflictingUpload("Another message of this client for this step is kept already.")
    return False
