"""Rounds under masks as bytes: both sides of their five steps, as protections need them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedrec.errors import KeysError, RoundClosed, RoundError
from fedrec.identity.identity import Identity
from fedrec.ids import ClientId
from fedrec.protection.masks.collector import Collector
from fedrec.protection.masks.messages import (
    BUNDLE,
    GIVEN,
    INBOX,
    KEY_LIST,
    base_state_from_bytes,
    key_list_from_bytes,
    keys_from_bytes,
    keys_to_bytes,
    signatures_from_bytes,
    signatures_to_bytes,
)
from fedrec.protection.masks.participant import Participant
from fedrec.protection.masks.terms import ANSWER, SHARES, SIGNATURE, VECTOR, MaskTerms, ring_seed
from fedrec.protection.masks.words import MaskWords
from fedrec.protection.none import NoProtection
from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.round_protocol import (
    ClientSide,
    CoordinatorSide,
    RoundProtocol,
    RoundTerms,
)
from fedrec.protection.settings import Tolerance
from fedrec.protection.vector import Integers, VectorSpec

UNMASK_THREADS = 2


class MaskRounds(RoundProtocol):
    """The rounds of masks: keys, shares, masked vectors, signatures and answers.

    Args:
        tolerance: the tolerance that decides the graph of every round.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance

    def begin(self, terms: RoundTerms, identity: Identity) -> tuple[ClientSide, bytes]:
        """Return a client's side of a new round, and its advertised keys."""
        participant, keys = Participant.begin(MaskTerms.of(terms, self._tolerance), identity)
        side = _MaskedClient(participant, terms, identity)
        return side, keys_to_bytes(keys, terms.base_state)

    def resume(self, terms: RoundTerms, identity: Identity, state: bytes) -> ClientSide:
        """Return a client's side from its stored state."""
        participant = Participant.from_bytes(
            MaskTerms.of(terms, self._tolerance), identity.client_id, state
        )
        return _MaskedClient(participant, terms, identity)

    def base_state(self, body: bytes) -> bytes:
        """Return the digest of the model that the author of advertised keys starts from."""
        return base_state_from_bytes(body)

    def check_first(self, terms: RoundTerms, client_id: ClientId, body: bytes) -> None:
        """Check one client's advertised keys."""
        keys, _ = keys_from_bytes(client_id, body)
        keys.verify(MaskTerms.of(terms, self._tolerance), terms.roster)
        keys.check_usable()

    def collect(
        self,
        terms: RoundTerms,
        firsts: Mapping[ClientId, bytes],
        spec: VectorSpec,
        plan: ProtectionPlan,
    ) -> CoordinatorSide:
        """Close the list of keys, and return the object that collects the rest."""
        collector = Collector(
            MaskTerms.of(terms, self._tolerance),
            terms.roster,
            MaskWords(spec, plan),
            graph_seed=ring_seed(terms),
        )
        for client_id, body in firsts.items():
            collector.add_keys(keys_from_bytes(client_id, body)[0])
        collector.close_keys()
        return _MaskedSum(collector, spec)


class _MaskedClient(ClientSide):
    """A participant that reads and writes bytes."""

    __slots__ = ("_identity", "_participant", "_terms")

    def __init__(self, participant: Participant, terms: RoundTerms, identity: Identity) -> None:
        self._participant = participant
        self._terms = terms
        self._identity = identity

    @property
    def agreement(self) -> bytes:
        """The digest of the list of keys."""
        return self._participant.round_digest

    def answer(self, step: str, material: bytes) -> bytes:
        """Return encrypted shares, a signature of the survivors, or the requested shares."""
        participant, roster = self._participant, self._terms.roster
        if step == SHARES:
            keys = key_list_from_bytes(material)
            return BUNDLE.to_bytes(participant.share(keys, roster, ring_seed(self._terms)))
        if step == SIGNATURE:
            return participant.sign(material, self._identity, roster)
        if step == ANSWER:
            return GIVEN.to_bytes(participant.give(signatures_from_bytes(material), roster))
        raise RoundError("Keys are advertised once, in answer to a round's opening.")

    def protect(
        self, material: bytes, vector: Integers, spec: VectorSpec, plan: ProtectionPlan
    ) -> bytes:
        """Return the vector under its masks."""
        words, inbox = MaskWords(spec, plan), INBOX.from_bytes(material)
        masked = self._participant.mask(inbox, words.encode(vector), n_wide=words.n_wide)
        return words.message(masked)

    def to_bytes(self) -> bytes:
        """Return the participant's state."""
        return self._participant.to_bytes()


class _MaskedSum(CoordinatorSide):
    """A collector that reads and writes bytes."""

    def __init__(self, collector: Collector, spec: VectorSpec) -> None:
        self._collector = collector
        self._spec = spec
        self._key_list = b""

    @property
    def agreement(self) -> bytes:
        """The digest of the list of keys."""
        return self._collector.round_digest

    def add(self, step: str, client_id: ClientId, body: bytes) -> None:
        """Take shares, a signature or an answer."""
        collector = self._collector
        try:
            if step == SHARES:
                collector.add_shares(client_id, BUNDLE.from_bytes(body))
            elif step == SIGNATURE:
                collector.add_signature(client_id, body)
            else:
                collector.add_answer(client_id, GIVEN.from_bytes(body))
        except KeysError:
            raise RoundClosed("This client isn't in the round's list of keys.") from None

    def add_vector(self, client_id: ClientId, message: bytes) -> None:
        """Add a masked vector to the sum."""
        self._collector.add_vector(client_id, message)

    def close(self, step: str, left_out: Collection[ClientId] = ()) -> None:
        """Close a step. The last one needs enough answers for all secrets."""
        if step == SHARES:
            self._collector.close_shares()
        elif step == VECTOR:
            self._collector.close_vectors(left_out)
        elif step == SIGNATURE:
            self._collector.close_signatures()
        elif not self._collector.can_unmask:
            raise RoundError("Too few clients answered to recover all clients' secrets.")

    def material(self, step: str, client_id: ClientId) -> bytes:
        """Return the list of keys, an inbox, the survivors, or their signatures."""
        collector = self._collector
        if step == SHARES:
            # It is the same for all clients, and long if there are many.
            self._key_list = self._key_list or KEY_LIST.to_bytes(collector.key_list)
            return self._key_list
        if step == VECTOR:
            return INBOX.to_bytes(collector.inbox(client_id))
        if step == SIGNATURE:
            return collector.survivors
        return signatures_to_bytes(collector.signatures_for(client_id))

    @property
    def can_finish(self) -> bool:
        """Whether enough shares of every secret arrived."""
        return self._collector.can_unmask

    def finish(self) -> bytes:
        """Return the unmasked sum."""
        total = self._collector.unmask(threads=UNMASK_THREADS)
        plain = NoProtection(self._spec, NoProtection.plan(self._spec))
        return plain.packed_sum(total, self._collector.n_vectors)
