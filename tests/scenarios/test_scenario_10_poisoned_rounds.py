"""POISON-CTX over the wire: what is no ciphertext is refused before the sum.

What cannot be told from one is refused by whoever opens the sum, and nothing of it is published.
"""

import json
import secrets

import numpy as np
import pytest
from world.bench import (
    KINDS,
    N_ITEMS,
    Alone,
    Bench,
    accepted,
    clear_plan,
    compute,
    federal,
    plan_of,
)
from world.links import POISONED_ROUND, Poisoner
from world.plans import params

from fedrec.errors import MalformedUpdate, RevealRefused
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.plan.layout import Layout
from fedrec.protection import PROTECTIONS
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_client.state.private_store import PrivateStore

HEADER_BYTES, CONTEXT_HEAD = 44, 56
PAILLIER = "paillier/packed-2048"
CIPHERTEXT_BYTES = 512
MEMBERS = range(3)
HOSTILE = 3
KEPT, N_PLACES = 30, 256 * 4
"""Of Top-K: an eighth of 60 x 4 values, and the places of a table of 256 rows."""


def number(value):
    return value.to_bytes(CIPHERTEXT_BYTES, "big")


def no_ciphertexts(bench):
    """Return ways of damaging a message of ciphertexts modulo n squared."""
    n = modulus(bench)

    def last_is(value):
        return lambda message: message[:-CIPHERTEXT_BYTES] + number(value)

    return [
        last_is(0),
        last_is(n * n),
        # Shares a factor with n.
        last_is(n),
        # Short, and longer by an exponent.
        lambda message: message[:-CIPHERTEXT_BYTES],
        lambda message: message + (-1000).to_bytes(4, "big", signed=True),
        # Not numbers below n squared.
        lambda message: message[:HEADER_BYTES] + b"\xff" * (len(message) - HEADER_BYTES),
        # Another key's name.
        lambda message: message[:28] + bytes(16) + message[HEADER_BYTES:],
        lambda message: secrets.token_bytes(len(message)),
    ]


def other_parameters(bench):
    """Return an update of the paper's parameters, cut to the length that is expected."""
    message = protected(plan_of("ckks/paper"))
    return [lambda payload: message[: len(payload)]]


def other_indices(bench):
    """Return one entry more than the plan's, and one behind the table."""
    raw = np.array([*range(KEPT - 1), N_PLACES], dtype="<u4").tobytes()
    return [
        lambda payload: payload + bytes(4 + CIPHERTEXT_BYTES),
        lambda payload: payload[:HEADER_BYTES] + raw + payload[HEADER_BYTES + len(raw) :],
    ]


def protected(plan):
    """Return zeros under a key of no federation."""
    spec = Layout.of(plan, N_ITEMS).vector_spec
    kind = PROTECTIONS[plan.protection.name]
    own = kind(spec, kind.plan(spec, preset=plan.protection.preset))
    context, secret = own.generate()
    member = own.member(context, secret.export_for_wrapping(), tag_key=bytes(32))
    return member.protect(np.zeros(spec.length, dtype=np.int64), b"any")


@pytest.mark.parametrize(
    ("plan", "kind", "poisons"),
    [
        (plan_of(PAILLIER, 3, total=1), Bench, no_ciphertexts),
        (plan_of("bfv", 3, total=1), Bench, other_parameters),
        (clear_plan(minimum_clients=3, total=2), Alone, other_indices),
    ],
    ids=["paillier", "bfv", "top-k"],
)
def test_scenario_10_poison_is_refused_and_the_others_go_on(found, plan, kind, poisons):
    federation = found(plan, 4, bench=kind)
    bench = federation.bench
    identity = Identity.load(bench.state(HOSTILE))
    hostile = federation.client(HOSTILE, wrap=lambda link: Poisoner(link, identity, poisons(bench)))
    federation.until_waiting(HOSTILE)
    members = [federation.client(at) for at in MEMBERS]
    failure = hostile.failure()
    assert type(failure) is MalformedUpdate, repr(failure)
    for member in members:
        member.wait_for("sent", POISONED_ROUND)
    federation.clock.jump(plan.rounds.deadline_seconds)
    for member in members:
        assert member.result().reason == "all rounds are published"
    rounds = accepted(bench, federation.published())
    assert rounds[-1].clients == set(MEMBERS)
    wanted = compute(plan, bench.users(), rounds)
    assert {bench.model(at) for at in MEMBERS} == {wanted.model}
    assert federal(federation.metrics()) == federal(wanted.metrics)


def of_a_foreign_key(bench):
    """Return what only the opened sum shows to be wrong.

    Random units modulo n squared are ciphertexts of something, and a message of another key may
    have the name of the right one.
    """
    if bench.plan.protection.name != "paillier":
        body = protected(bench.plan)[HEADER_BYTES:]
        return lambda payload: payload[:HEADER_BYTES] + body[: len(payload) - HEADER_BYTES]
    n = modulus(bench)

    def random_units(message):
        count = (len(message) - HEADER_BYTES) // CIPHERTEXT_BYTES
        units = (number(secrets.randbelow(n * n - 1) + 1) for _ in range(count))
        return message[:HEADER_BYTES] + b"".join(units)

    return random_units


def begin(federation):
    """Start three clients, of whom the first poisons a round."""
    bench = federation.bench
    identity, poison = Identity.load(bench.state(0)), of_a_foreign_key(bench)
    federation.client(0, wrap=lambda link: Poisoner(link, identity, [poison]))
    federation.client(1)
    federation.client(2)


@pytest.mark.parametrize("protection", params("bfv", PAILLIER, long=["ckks"]))
def test_scenario_10_ciphertexts_of_a_foreign_key_are_never_revealed(found, revealing, protection):
    """The key authority refuses the sum with its reason, and the next round is published."""
    federation = found(plan_of(protection, key_holder="authority"))
    bench = federation.bench
    begin(federation)
    revealing(federation)
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    given_up = [event.round for event in federation.journal() if event.kind == "round abandoned"]
    assert given_up == [POISONED_ROUND]
    folder = AuthorityFolder(bench.workspace.folder / "keys").revealer.folder / STATE_FOLDER
    assert refusals(folder) == [("reveal_refused", "reveal_refused", POISONED_ROUND)]
    # What was published is what honest updates sum to: the poisoned ones are in no model.
    rounds = accepted(bench, federation.published())
    assert POISONED_ROUND not in [played.round for played in rounds]
    assert len(rounds) == len(KINDS)
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(at) for at in range(3)} == {wanted.model}


@pytest.mark.parametrize("protection", params("bfv", long=["ckks"]))
def test_scenario_10_where_members_decrypt_no_client_applies_it(found, protection):
    """Every client is taken to be honest there: whoever is not can end the run, and no more."""
    federation = found(plan_of(protection))
    begin(federation)
    for at, client in enumerate(federation.clients):
        assert isinstance(client.failure(), RevealRefused)
        state = federation.bench.state(at)
        ((event, _, round_id),) = refusals(state)
        assert (event, round_id) == ("published_round_refused", POISONED_ROUND)
        assert PrivateStore(state, read_only=True).state.version == POISONED_ROUND - 1


def modulus(bench):
    """Return n, which is public: it is what the coordinator's context holds."""
    context = KeyEpoch.load(bench.workspace.epoch).server_context
    return int.from_bytes(context[CONTEXT_HEAD:], "big")


def refusals(state):
    """Return what a party wrote down as refused."""
    lines = map(json.loads, (state / AUDIT_FILE).read_text().splitlines())
    return [(line["event"], line["code"], line["round"]) for line in lines]
