"""Keys of a round: signed by members, for one round, and agreed alike on both sides."""

from dataclasses import replace

import pytest
from common.protection.masks.cohort import TEN_TEN, Cohort, make_people, make_terms

from fedrec.errors import BadSignature, KeysError, MalformedUpdate, NotInRoster, SettingsError
from fedrec.identity.identity import Identity
from fedrec.protection.masks import KeyAdvertisement, KeyList, Participant
from fedrec.protection.masks.keys import (
    SEALED_BYTES,
    RoundKeys,
    exchange,
    open_shares,
    pair_mask_key,
    private_key,
    public_key,
    seal_shares,
)

DIGEST = b"d" * 32


def test_the_exchange_of_rfc_7748():
    """RFC 7748, section 6.1: Alice's and Bob's keys and their common secret."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert public_key(alice).hex() == (
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    )
    assert exchange(private_key(alice), bob_public).hex() == shared


def test_both_sides_agree_and_no_third_one():
    one, other = RoundKeys.create(), RoundKeys.create()
    key = pair_mask_key(DIGEST, private_key(one.mask), public_key(other.mask), own=2, other=7)
    assert key == pair_mask_key(
        DIGEST, private_key(other.mask), public_key(one.mask), own=7, other=2
    )
    assert len(key) == 32
    assert key != pair_mask_key(
        b"e" * 32, private_key(one.mask), public_key(other.mask), own=2, other=7
    )
    assert key != pair_mask_key(
        DIGEST, private_key(one.mask), public_key(other.mask), own=2, other=8
    )


def test_shares_open_for_one_holder_in_one_direction_and_round():
    owner, holder = RoundKeys.create(), RoundKeys.create()
    shares = {"self_share": b"s" * 33, "key_share": b"k" * 33}
    to_holder = public_key(holder.share)
    sealed = seal_shares(DIGEST, private_key(owner.share), to_holder, owner=1, holder=2, **shares)
    assert len(sealed) == SEALED_BYTES == 82
    args = (DIGEST, private_key(holder.share), public_key(owner.share))
    assert open_shares(*args, owner=1, holder=2, sealed=sealed) == (b"s" * 33, b"k" * 33)
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong in (
        {"owner": 2, "holder": 1, "sealed": sealed},
        {"owner": 1, "holder": 3, "sealed": sealed},
        {"owner": 1, "holder": 2, "sealed": flipped},
        {"owner": 1, "holder": 2, "sealed": b""},
    ):
        with pytest.raises(BadSignature):
            open_shares(*args, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadSignature):
        open_shares(b"e" * 32, *args[1:], owner=1, holder=2, sealed=sealed)


def test_a_key_that_agrees_with_every_client_is_refused():
    """The point of order 1: the exchange would give zeros whoever takes part."""
    with pytest.raises(KeysError):
        exchange(private_key(RoundKeys.create().mask), bytes(32))


def test_an_advertisement_is_bound_to_its_round_and_owner():
    people, roster = make_people(3)
    terms = make_terms()
    _, keys = Participant.begin(terms, people[0])
    keys.verify(terms, roster)
    for other in (
        make_terms(round_id=2),
        replace(terms, run="another"),
        replace(terms, federation="another"),
        replace(terms, epoch=2),
        replace(terms, terms_digest=b"u" * 32),
        replace(terms, minimum_summands=4),
        replace(terms, tolerance=replace(TEN_TEN, malicious=True)),
    ):
        with pytest.raises(BadSignature):
            keys.verify(other, roster)
    for swapped in (
        replace(keys, mask_key=keys.share_key, share_key=keys.mask_key),
        replace(keys, mask_key=public_key(RoundKeys.create().mask)),
        replace(keys, client_id=people[1].client_id),
        replace(keys, signature=bytes(64)),
    ):
        with pytest.raises(BadSignature):
            swapped.verify(terms, roster)
    _, stranger = Participant.begin(terms, Identity.create())
    with pytest.raises(NotInRoster):
        stranger.verify(terms, roster)


def test_swapped_keys_are_refused_by_participants():
    """A coordinator in the middle of every pair is seen, whoever relays the list."""
    cohort = Cohort.of(4)
    cohort.advertise()
    mine = public_key(RoundKeys.create().mask)
    forged = (cohort.key_list.keys[0], *cohort.key_list.keys[1:])
    forged = (replace(forged[0], mask_key=mine), *forged[1:])
    with pytest.raises(BadSignature):
        cohort.participants[1].share(KeyList(forged), cohort.roster)
    with pytest.raises(KeysError, match="keys that this client advertised"):
        _, again = Participant.begin(cohort.terms, cohort.people[1])
        keys = [again if k.client_id == again.client_id else k for k in cohort.key_list.keys]
        cohort.participants[1].share(KeyList.of(keys), cohort.roster)
    with pytest.raises(KeysError, match="isn't in the round"):
        rest = [k for k in cohort.key_list.keys if k.client_id != cohort.id(1)]
        cohort.participants[1].share(KeyList.of(rest), cohort.roster)


def test_a_list_has_every_client_and_key_once():
    people, _ = make_people(2)
    terms = make_terms()
    _, one = Participant.begin(terms, people[0])
    _, again = Participant.begin(terms, people[0])
    _, other = Participant.begin(terms, people[1])
    for keys in ((one, again), (one, replace(other, mask_key=one.share_key))):
        with pytest.raises(KeysError, match="twice"):
            KeyList.of(keys)
    assert KeyList.of((other, one)).digest(terms) == KeyList.of((one, other)).digest(terms)
    assert KeyList.of((other, one)).participants == tuple(p.client_id for p in people)


def test_lengths_are_checked():
    people, _ = make_people(1)
    with pytest.raises(MalformedUpdate):
        KeyAdvertisement(client_id=people[0].client_id, mask_key=b"short", share_key=bytes(32))


def test_terms_never_allow_a_sum_of_two():
    with pytest.raises(SettingsError, match="minimum_summands is 2"):
        make_terms(minimum=2)
    with pytest.raises(SettingsError, match="terms_digest"):
        replace(make_terms(), terms_digest=b"")
