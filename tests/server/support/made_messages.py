"""Messages of made-up clients and of a made-up key authority to a run."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from blake3 import blake3

from fedrec.ids import ClientId, RoundId
from fedrec.plan.schema import RoundSettings
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import Report, RevealStatement, RoundKind, UploadHeader
from fedrec_server.rounds.state import Rules, State

RUN = "run"
AUTHORITY = 1000
"""The number of the client that is no member and opens sums, where there is one."""


def client(number: int) -> ClientId:
    """Return the id of a made-up client."""
    return ClientId(hashlib.sha256(str(number).encode()).hexdigest())


def rules(*, needs_reveal: bool = True, exact: bool = False, **rounds: float) -> Rules:
    """Return rules with the given round settings."""
    return Rules(
        run=RUN,
        epoch=1,
        seed=7,
        needs_reveal=needs_reveal,
        rounds=RoundSettings(**rounds),
        exact=exact,
    )


def header(
    round_id: int,
    client_id: ClientId,
    content: str = "update",
    *,
    kind: RoundKind = "count",
    base_round: int = 0,
    base_state: bytes = bytes(32),
    key_list: bytes = b"",
) -> UploadHeader:
    """Return an update's header, of a first round; equal contents give equal digests."""
    return UploadHeader(
        protocol_version="2.0",
        federation="movies",
        run=RUN,
        round=RoundId(round_id),
        kind=kind,
        base_round=RoundId(base_round),
        base_state=base_state,
        key_list=key_list,
        nonce=b"",
        epoch=1,
        client_id=client_id,
        catalogue_fingerprint="c",
        plan_fingerprint="p",
        length=10,
        digest=blake3(content.encode()).digest(),
        signature=bytes(64),
    )


def told(state: State) -> dict[str, Any]:
    """Return what a header says about the round in progress, as its contributors were told."""
    round_ = state.current
    assert round_ is not None
    return {
        "kind": round_.kind,
        "base_round": round_.base_round,
        "base_state": state.base_state or bytes(32),
        "key_list": bytes(32) if state.rules.steps.are_several else b"",
    }


def mistaken(terms: dict[str, Any], base_round: int, choose: random.Random) -> None:
    """Take one of a header's terms, and make it wrong every other time."""
    wrong = {
        "kind": "evaluate",
        "base_round": base_round + 1,
        "base_state": b"x" * 32,
        "key_list": b"x" * 32,
    }
    name = choose.choice(sorted(wrong))
    terms[name] = choose.choice([terms[name], wrong[name]])


def statement(
    state: State, client_id: ClientId, content: str = "honest", *, refused: str = ""
) -> RevealStatement:
    """Return a statement on the round in progress."""
    tag = blake3(content.encode()).digest()
    return RevealStatement(
        federation="movies",
        run=RUN,
        round=state.current.number,
        epoch=1,
        client_id=client_id,
        manifest_digest=state.current.manifest_digest(RUN),
        state_tag=tag,
        published_digest=tag,
        metrics=bytes(8),
        refused=refused,
        signature=bytes(64),
        kind=state.current.kind,
        sequence=state.current.number,
    )


def report(state: State, client_id: ClientId, content: str = "honest") -> Report:
    """Return a client's word on the published round."""
    return Report(
        federation="movies",
        run=RUN,
        round=state.published,
        epoch=state.rules.epoch,
        client_id=client_id,
        state_tag=blake3(content.encode()).digest(),
        metrics=bytes(8),
        signature=bytes(64),
    )


def blob(content: str) -> Blob:
    """Return the announcement of made-up bytes."""
    return Blob.of(content.encode())
