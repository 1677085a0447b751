"""A member with changed software and the coordinator take others' ciphertexts off a sum.

The authority opens sums over whole rosters only, of updates that members signed. A member signs
whatever it likes: here the negated ciphertexts of all but the victim, which the coordinator
handed to it. All that the authority checks of the list is right, and what opens is the victim's
update, alone. Under bfv tags show it: the member would have to take the others' pads off, which
each shares with the authority only. ckks has no tags, so all clients are taken to be honest.
"""

import numpy as np
import pytest
from conformance.protection_suite import random_vectors
from world.plans import plan_of

from fedrec.errors import WrongTags
from fedrec.plan.layout import vector_spec
from fedrec.protection import PROTECTIONS, Member, SegmentSpec, VectorSpec
from fedrec.protection.ciphertext_blocks import ResidueLayout
from fedrec.protection.protection_plan import HEADER_BYTES

TAG_KEY, NAMES = b"\x07" * 32, (b"victim", b"second", b"third", b"changed software")
SEGMENT = SegmentSpec(name="all", length=6000, max_abs_sum=10**4)


def negated(layout, messages):
    """Return a message whose blocks are minus the sum of the others': arithmetic without a key."""
    moduli = np.array(layout.primes, dtype=np.uint64)[:, None]
    frames = []
    for start in range(HEADER_BYTES, len(messages[0]), layout.frame_bytes):
        total = np.zeros(layout.shape, dtype=np.uint64)
        for message in messages:
            layout.add_to(total, layout.unpack(message[start : start + layout.frame_bytes]))
        frames.append(layout.pack((moduli - total) % moduli))
    return messages[0][:HEADER_BYTES] + b"".join(frames)


class Federation:
    """Four members who can only encrypt, a coordinator, and the authority that opens."""

    def __init__(self, name):
        kind = PROTECTIONS[name]
        self.spec = VectorSpec(segments=(SEGMENT,), max_summands=4, tagged=kind.can_tag)
        self.protection = kind(self.spec, kind.plan(self.spec))
        self.context, secret = self.protection.generate()
        self.authority = self.protection.member(self.context, secret, tag_key=TAG_KEY)
        key = self.protection.encryption_key(secret)
        self.member: Member = self.protection.encryptor(self.context, key, tag_key=TAG_KEY)

    def opened(self, messages):
        """Add updates up as the authority does, and open the sum under every client's names."""
        accumulator = self.protection.accumulator(self.context)
        for message in messages:
            accumulator.add(message)
        names = NAMES if self.spec.tagged else None
        return self.authority.reveal(accumulator.finish(), len(messages), names)

    def attack(self, honest, names):
        """Return the updates when the last member takes the second and third off.

        Zeros that it encrypts itself bring the counter of summands to four again, and the pads of
        the names that they are made under.
        """
        layout = ResidueLayout.of_plan(self.protection.chosen)
        nothing = np.zeros(SEGMENT.length, dtype=np.int64)
        zeros = [self.member.protect(nothing, name) for name in names]
        made = negated(layout, [negated(layout, [negated(layout, honest[1:3]), *zeros])])
        return [*honest[:3], made]


def honest_updates(federation):
    vectors = random_vectors(federation.spec, 4, seed=3)
    pairs = zip(vectors, NAMES, strict=True)
    return vectors, [federation.member.protect(vector, name) for vector, name in pairs]


@pytest.mark.parametrize("name", ["ckks", "bfv"])
def test_negated_ciphertexts(name):
    federation = Federation(name)
    vectors, honest = honest_updates(federation)
    assert np.array_equal(federation.opened(honest), sum(vectors))
    attack = federation.attack(honest, (b"guessed", b"names", NAMES[3]))
    if federation.protection.can_tag:
        with pytest.raises(WrongTags):
            federation.opened(attack)
    else:
        assert np.array_equal(federation.opened(attack), vectors[0]), "the victim's, alone"


def test_it_rests_on_names_that_only_their_authors_and_the_authority_know():
    """The key of the tags does not help: every member has it."""
    federation = Federation("bfv")
    vectors, honest = honest_updates(federation)
    assert np.array_equal(federation.opened(federation.attack(honest, NAMES[1:])), vectors[0])


@pytest.mark.parametrize(("name", "tagged"), [("bfv", True), ("paillier", True), ("ckks", False)])
def test_sums_that_the_authority_opens_are_tagged_where_that_is_possible(name, tagged):
    protection = {"name": name, "key_holder": "authority"}
    assert vector_spec(plan_of(protection=protection), 10).tagged == tagged
