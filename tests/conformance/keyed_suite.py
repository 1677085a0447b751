"""What every protection with keys must do, besides what every one must."""

import numpy as np
import pytest
from conformance.protection_suite import (
    HEADER_BYTES,
    ProtectionSuite,
    random_vectors,
)

from fedrec.errors import KeysError, MalformedUpdate, RevealRefused


class KeyedSuite(ProtectionSuite):
    """What only a protection with keys can promise."""

    def test_one_vector_gives_different_messages(self, party):
        vector = np.zeros(self.spec.length, dtype=np.int64)
        assert party.member.protect(vector) != party.member.protect(vector)

    def test_a_foreign_key_is_refused_by_name(self, party, foreign, message):
        with pytest.raises(MalformedUpdate):
            foreign.protection.accumulator(foreign.context).add(message)
        with pytest.raises(KeysError):
            party.protection.member(party.context, foreign.secret)

    def test_a_foreign_key_under_a_forged_name_is_seen(self, party, foreign, message):
        zeros = np.zeros(self.spec.length, dtype=np.int64)
        forged = message[:HEADER_BYTES] + foreign.member.protect(zeros)[HEADER_BYTES:]
        # A ciphertext of a larger modulus is no number of ours, and is refused before the sum.
        with pytest.raises((RevealRefused, MalformedUpdate)):
            party.member.reveal(self.total(party, [message, forged]), 2)

    def test_a_sum_under_a_wrong_count_is_seen_when_revealed(self, party, message):
        total = self.total(party, [message])
        lied = total[:8] + (3).to_bytes(4, "little") + total[12:]
        with pytest.raises(RevealRefused):
            party.member.reveal(lied, 3)

    def test_a_closed_member_does_nothing(self, party, message):
        member = party.protection.member(party.context, party.secret)
        member.close()
        with pytest.raises(KeysError):
            member.protect(np.zeros(self.spec.length, dtype=np.int64))
        with pytest.raises(KeysError):
            member.reveal(self.total(party, [message]), 1)


class EncryptedSuite(KeyedSuite):
    """What only a protection can promise whose key for encrypting opens nothing."""

    def test_whoever_only_encrypts_is_summed_like_the_others(self, party):
        protection = party.protection
        vectors = random_vectors(self.spec, 3)
        key = protection.encryption_key(party.secret)
        assert key == protection.encryption_key(party.secret.export_for_wrapping())
        sender = protection.encryptor(party.context, key)
        messages = [sender.protect(vector) for vector in vectors[:2]]
        total = self.total(party, [*messages, party.member.protect(vectors[2])])
        assert np.array_equal(party.member.reveal(total, 3), np.sum(vectors, axis=0))
        assert sender.protect(vectors[0]) != messages[0]

    def test_whoever_only_encrypts_opens_nothing(self, party, message):
        protection, secret = party.protection, party.secret.export_for_wrapping()
        key = protection.encryption_key(party.secret)
        sender = protection.encryptor(party.context, key)
        own = sender.protect(np.zeros(self.spec.length, dtype=np.int64))
        for one in (own, message):
            with pytest.raises(KeysError, match="doesn't open sums"):
                sender.reveal(self.total(party, [one]), 1)
        with pytest.raises(KeysError):
            protection.member(party.context, key)
        for more in (secret, key + b"\0", b"", key[:-1]):
            with pytest.raises(KeysError):
                protection.encryptor(party.context, more)
        sender.close()
        with pytest.raises(KeysError):
            sender.protect(np.zeros(self.spec.length, dtype=np.int64))
