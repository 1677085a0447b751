"""What every lattice refuses besides what its suite refuses: foreign keys, and random blocks."""

import numpy as np
import pytest
from conformance.protection_suite import SPEC, make_party, summed

from fedrec.errors import KeysError, RevealRefused
from fedrec.protection import BFV, CKKS

CHOICES = [(BFV, "default"), (BFV, "wide"), (CKKS, "lean"), (CKKS, "paper")]


@pytest.fixture(scope="module", params=CHOICES, ids=lambda choice: "-".join(map(str, choice[1:])))
def party(request):
    return make_party(*request.param)


def test_keys_of_other_parameters_or_no_keys_are_refused(party):
    foreign_kind, foreign_preset = CHOICES[1] if party.protection.name == "ckks" else CHOICES[2]
    foreign = make_party(foreign_kind, foreign_preset).secret.export_for_wrapping()[56:]
    damaged = party.secret.export_for_wrapping()[56:-100]
    for keys in (b"", b"garbage", damaged, foreign):
        with pytest.raises(KeysError):
            party.protection.member(party.context, party.context + keys)


def test_an_export_holds_no_key_for_multiplying_or_rotating(party):
    import tenseal

    context = tenseal.context_from(party.secret.export_for_wrapping()[56:])
    assert context.has_secret_key() and context.has_public_key()
    assert not context.has_relin_keys() and not context.has_galois_keys()


def test_random_ciphertexts_are_seen_when_revealed(party):
    total = summed(party, party.member.protect(np.zeros(SPEC.length, dtype=np.int64)))
    rng = np.random.default_rng(5)
    noise = bytearray(total)
    for at in rng.integers(44, 1000, 20):
        noise[at] ^= 1
    for at in rng.integers(len(total) // 2 - 1000, len(total) // 2, 20):
        noise[at] ^= 1
    with pytest.raises(RevealRefused):
        party.member.reveal(bytes(noise), 1)
