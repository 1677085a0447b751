"""The coordinator's side of one round: collect participants' messages, and unmask the sum.

The five steps are keys, shares, vectors, signatures and answers. Each closes before the next opens.
A message is checked as a whole before anything changes. A duplicate counts once, and a different
message from the same client is refused, as is a late one. Nothing here is secret until answers
arrive, and they open only the sum. After a crash, a round's collector is rebuilt from the stored
messages by closing the same steps in the same order.

The collector can't tell whether a client masked the right vector.
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
"""The function that makes the key of a mask when it is needed, and the sign that removes it."""
Content = TypeVar("Content")
Name = TypeVar("Name", int, ClientId)


class Collector:
    """Collect one round.

    Args:
        terms: the round's terms.
        roster: the epoch's roster.
        words: the format of messages.
        graph_seed: the seed of the ring, drawn before the round opens. It has no effect if the
            coordinator is assumed to be malicious.

    Attributes:
        step: the present step.
        key_list: the participants' keys, once the list is closed.
        round_digest: `KeyList.digest` of the closed list. Every message is bound to it.
        survivors: the survivors, packed, once the vectors are closed.
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
        """The number of vectors in the sum."""
        return len(self._vectors)

    @property
    def graph(self) -> GraphParameters:
        """The parameters of the graph, once the list of keys is closed."""
        return self._terms.graph_of(len(self.key_list.keys))

    def add_keys(self, advertisement: KeyAdvertisement) -> None:
        """Take a client's keys.

        Raises:
            NotInRoster, BadSignature: no member made the keys for this round.
            MalformedUpdate: the keys can't be used.
        """
        self._expect("keys")
        advertisement.verify(self._terms, self._roster)
        advertisement.check_usable()
        _put(self._advertised, advertisement.client_id, advertisement)

    def close_keys(self) -> KeyList:
        """Return the list of participants, for all of them to see.

        Raises:
            RoundError: there are too few.
            RevealRefused: the list is too short for any client to take part.
            KeysError: a key appears twice.
            SettingsError: no graph of this many clients is safe under the terms.
        """
        self._expect("keys")
        count = len(self._advertised)
        if count < self._terms.minimum_summands or count > self._words.plan.max_summands:
            raise RoundError(
                f"{count} clients advertised keys, but the round needs "
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
            MalformedUpdate: the shares aren't for its neighbours.
        """
        self._expect("shares")
        own = self.key_list.position(client_id)
        holders = bundle.holders
        if self._ring and holders != self._ring[own]:
            raise MalformedUpdate("The shares aren't for the client's neighbours.")
        if len(holders) != self.graph.degree or own in holders:
            raise MalformedUpdate(f"Pass shares for {self.graph.degree} other clients.")
        if holders[-1] >= self.graph.n_clients:
            raise MalformedUpdate("A share is for a client that isn't in the list of keys.")
        _put(self._bundles, own, bundle)

    def close_shares(self) -> frozenset[int]:
        """Return the clients that continue: those whose shares arrived.

        Raises:
            RoundError: a client has too few neighbours left, so the round can't continue.
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
        """Return a participant's material for masking, once the shares are closed.

        Raises:
            RoundClosed: the participant's shares didn't arrive in time.
        """
        found = self._inboxes.get(self.key_list.position(client_id))
        if found is None:
            raise RoundClosed("This client's shares didn't arrive in time.")
        return Inbox(shared=self._shared, owners=tuple(found), sealed=tuple(found.values()))

    def add_vector(self, client_id: ClientId, message: bytes) -> None:
        """Add a participant's masked vector to the sum.

        Args:
            message: `MaskWords.message` of the masked words.

        Raises:
            MalformedUpdate: the message has the wrong length, plan or kind.
            RoundClosed: the vector is late, or its shares were.
        """
        self._expect("vectors")
        own, words = self._sharer(client_id), self._words.open(message)
        if _put(self._vectors, own, sha256(message).digest()):
            add_words(self._total, words, 1, n_wide=self._words.n_wide)

    def close_vectors(self, left_out: Collection[ClientId] = ()) -> bytes:
        """Return the packed survivors, for all connected clients to sign.

        Args:
            left_out: connected clients whose vectors aren't in the sum, because others of their
                cells dropped out.

        Raises:
            RoundError: too few are left to unmask the sum. No secret is then requested.
            PartialCell: the added vectors contain part of a cell, so no participant would sign.
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
        """Take the signature of a client that shared, even if its vector isn't in the sum.

        Raises:
            BadSignature: the signature isn't over the set that `close_vectors` returned.
        """
        self._expect("signatures")
        own = self._sharer(client_id)
        statement = survivors_statement(self.round_digest, self._shared, self.survivors)
        verify(self._roster.member(client_id).signing_key, statement, signature)
        _put(self._signatures, own, signature)

    def close_signatures(self) -> None:
        """Open the step of answers.

        Raises:
            RoundError: there are too few signatures for any participant to answer.
        """
        self._expect("signatures")
        self._check_alive(frozenset(self._signatures), "signed", of=frozenset(self._bundles))
        if len(self._signatures) < self.graph.quorum:
            raise RoundError(
                f"{len(self._signatures)} signed the survivors, but {self.graph.quorum} are needed."
            )
        self.step = "answers"

    def signatures_for(self, client_id: ClientId) -> dict[int, bytes]:
        """Return its neighbours' signatures or, if the coordinator may lie, all signatures."""
        own = self._sharer(client_id)
        if self._terms.tolerance.malicious:
            return dict(self._signatures)
        holders = self._bundles[own].holders
        return {h: self._signatures[h] for h in holders if h in self._signatures}

    def add_answer(self, client_id: ClientId, given: GivenShares) -> None:
        """Take the shares from a client that signed.

        Raises:
            MalformedUpdate: the shares weren't entrusted to it, are of the kind that must not be
                given, or are missing.
        """
        self._expect("answers")
        own = self._sharer(client_id)
        entrusted = set(self._inboxes[own]) | ({own} if self.graph.complete else set())
        stayed = set(given.self_owners)
        left = set(given.key_owners)
        if not (stayed <= entrusted & self._vectors.keys() and left <= entrusted):
            raise MalformedUpdate("The answer has shares that weren't entrusted to this client.")
        if left & self._vectors.keys():
            raise MalformedUpdate("The answer has shares of a survivor's mask key.")
        if entrusted and not stayed | left:
            # A client that can't open any of its shares gives none, and isn't needed.
            raise MalformedUpdate(
                f"The answer has none of the shares of {len(entrusted)} clients that were "
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
            RoundError: a secret can't be recovered.
            RevealRefused: honest vectors can't add up to the sum.
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
        """Return the given shares, of a seed or of a mask key, by owner and place."""
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
        """Yield the masks that survivors have in common with a client that dropped out."""
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
            raise RoundClosed("This client's shares didn't arrive in time.")
        return own

    def _check_alive(
        self, alive: frozenset[int], what: str, of: frozenset[int] | None = None
    ) -> None:
        """Stop the round unless the secrets of all clients in ``of`` can still be recovered."""
        graph = self.graph
        needed = max(graph.threshold, self._terms.minimum_summands)
        if len(alive) < needed:
            raise RoundError(
                f"Only {len(alive)} of {graph.n_clients} clients {what}. The round needs {needed}.",
                remedy="Too many clients dropped out. The next round starts again.",
            )
        for owner in of if of is not None else alive:
            own = graph.complete and owner in alive
            near = len(alive.intersection(self._bundles[owner].holders)) + own
            if near < graph.threshold:
                raise RoundError(
                    f"Only {near} neighbours of a client {what}. It needs {graph.threshold}.",
                    remedy="Too many clients dropped out. The next round starts again.",
                )

    def _expect(self, step: Step) -> None:
        if self.step != step:
            raise RoundClosed(f"The round collects {self.step}, not {step}.")


def _put(store: dict[Name, Content], name: Name, content: Content) -> bool:
    """Store the first content under a name. Return whether it is new.

    Raises:
        ConflictingUpload: another content is already stored.
    """
    if name not in store:
        store[name] = content
        return True
    if store[name] != content:
        raise ConflictingUpload("Another message of this client for this step is already stored.")
    return False
