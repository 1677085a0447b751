"""What travels in a round under masks survives, and nothing else is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.errors import FedrecError, ProtocolError, TooLarge
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.protection.masks import (
    GivenShares,
    Inbox,
    KeyAdvertisement,
    KeyList,
    ShareBundle,
    messages,
)
from fedrec.wire.convert import STEP_MESSAGE
from fedrec.wire.fields import MAX_STEP_BYTES
from fedrec.wire.messages import StepMessage

IDS = sorted(Identity.create().client_id for _ in range(3))


def keys_of(number: int) -> KeyAdvertisement:
    return KeyAdvertisement(
        client_id=IDS[number],
        mask_key=bytes([number]) * 32,
        share_key=bytes([100 + number]) * 32,
        signature=bytes([200 + number]) * 64,
    )


positions = st.lists(st.integers(0, 9_999), unique=True, max_size=20).map(sorted).map(tuple)


@given(positions, st.binary(min_size=82, max_size=82))
def test_shares_and_inboxes(holders, sealed):
    bundle = ShareBundle(holders=holders, sealed=(sealed,) * len(holders), commitment=b"c" * 32)
    assert messages.BUNDLE.from_bytes(messages.BUNDLE.to_bytes(bundle)) == bundle
    inbox = Inbox(shared=b"\x07", owners=holders, sealed=(sealed,) * len(holders))
    assert messages.INBOX.from_bytes(messages.INBOX.to_bytes(inbox)) == inbox


@given(positions)
def test_answers_and_signatures(owners):
    half = len(owners) // 2
    given_ = GivenShares(
        self_owners=owners[:half],
        self_shares=(b"s" * 33,) * half,
        key_owners=owners[half:],
        key_shares=(b"k" * 33,) * (len(owners) - half),
    )
    assert messages.GIVEN.from_bytes(messages.GIVEN.to_bytes(given_)) == given_
    signatures = {owner: bytes([owner % 256]) * 64 for owner in owners}
    raw = messages.signatures_to_bytes(signatures)
    assert messages.signatures_from_bytes(raw) == signatures


def test_keys_and_their_list():
    raw = messages.keys_to_bytes(keys_of(1), b"m" * 32)
    assert messages.keys_from_bytes(IDS[1], raw) == (keys_of(1), b"m" * 32)
    key_list = KeyList.of(keys_of(number) for number in range(3))
    raw = messages.KEY_LIST.to_bytes(key_list)
    assert messages.key_list_from_bytes(raw) == key_list
    twice = messages.KEY_LIST.to_bytes(KeyList((keys_of(0), keys_of(0))))
    with pytest.raises(ProtocolError, match="twice"):
        messages.key_list_from_bytes(twice)


READERS: list[Callable[[bytes], Any]] = [
    lambda raw: messages.keys_from_bytes(IDS[0], raw),
    messages.BUNDLE.from_bytes,
    messages.GIVEN.from_bytes,
    messages.key_list_from_bytes,
    messages.INBOX.from_bytes,
    messages.signatures_from_bytes,
]


@pytest.mark.parametrize("read", READERS)
@given(raw=st.binary(max_size=300))
def test_any_other_bytes_are_refused_or_read_but_never_crash(read, raw):
    try:
        read(raw)
    except FedrecError as error:
        assert isinstance(error, ProtocolError)


def test_contents_that_are_cut_short_are_refused():
    whole = messages.signatures_to_bytes({1: b"s" * 64, 2: b"t" * 64})
    short = messages.signatures_to_bytes({1: b"s" * 64, 2: b"t" * 63})
    assert messages.signatures_from_bytes(whole)
    with pytest.raises(ProtocolError, match="64 bytes for each position"):
        messages.signatures_from_bytes(short)


def test_messages_are_signed_in_every_field_and_limited():
    message = StepMessage(
        federation="movies",
        run="run",
        round=RoundId(3),
        epoch=1,
        client_id=IDS[0],
        step="shares",
        body=b"body",
        signature=b"s" * 64,
    )
    written = STEP_MESSAGE.to_proto(message)
    assert STEP_MESSAGE.from_proto(written) == message
    statements = set()
    for field, other in (
        ("federation", "books"), ("run", "other"), ("round", 4), ("epoch", 2),
        ("client_id", IDS[1]), ("step", "answer"), ("body", b"other"),
    ):  # fmt: skip
        changed = STEP_MESSAGE.to_proto(message)
        setattr(changed, field, other)
        statements.add(STEP_MESSAGE.from_proto(changed).statement())
    assert len(statements | {message.statement()}) == 8
    written.body = bytes(MAX_STEP_BYTES + 1)
    with pytest.raises(TooLarge):
        STEP_MESSAGE.from_proto(written)
    written.body, written.step = b"", "no step, but a sentence"
    with pytest.raises(ProtocolError, match="expected the name of a step"):
        STEP_MESSAGE.from_proto(written)
