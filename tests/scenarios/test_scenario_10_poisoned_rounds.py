"""POISON-CTX under paillier: what is no ciphertext is refused before the sum, what cannot be told
from one is refused by whoever reveals, and nothing of it is published.
"""

import json
import secrets

from world.bench import KINDS, accepted, compute, plan_of
from world.links import POISONED_ROUND, Poisoner
from world.parties import AuthorityProcess

from fedrec.errors import MalformedUpdate
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER

HEADER_BYTES, CONTEXT_HEAD = 44, 56
PROTECTION = "paillier/packed-2048"
CIPHERTEXT_BYTES = 512
MEMBERS = range(3)
HOSTILE = 3


def number(value):
    return value.to_bytes(CIPHERTEXT_BYTES, "big")


def poisons(n):
    """Return ways of damaging a message of ciphertexts modulo n squared."""

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


def test_scenario_10_poison_is_refused_and_the_others_go_on(found):
    federation = found(plan_of(PROTECTION, 3, total=1), 4)
    bench = federation.bench
    n = modulus(bench.workspace.epoch)
    identity = Identity.load(bench.state(HOSTILE))
    hostile = federation.client(
        HOSTILE,
        wrap=lambda link: Poisoner(link, identity, poisons(n)),
    )
    federation.until_waiting(HOSTILE)
    members = [federation.client(at) for at in MEMBERS]
    failure = hostile.failure()
    assert type(failure) is MalformedUpdate, repr(failure)
    for member in members:
        member.wait_for("sent", POISONED_ROUND)
    federation.clock.jump(bench.plan.rounds.deadline_seconds)
    for member in members:
        assert member.result().reason == "all rounds are published"
    rounds = accepted(bench, federation.published())
    assert rounds[-1].clients == set(MEMBERS)
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(at) for at in MEMBERS} == {wanted.model}


def test_scenario_10_ciphertexts_of_a_foreign_key_are_never_revealed(found):
    """Random units modulo n^2 are ciphertexts of something; only the sum shows that it is wrong."""
    federation = found(plan_of(PROTECTION, key_holder="authority"))
    bench = federation.bench
    n = modulus(bench.workspace.epoch)
    identity = Identity.load(bench.state(0))

    def random_units(message):
        count = (len(message) - HEADER_BYTES) // CIPHERTEXT_BYTES
        units = (number(secrets.randbelow(n * n - 1) + 1) for _ in range(count))
        return message[:HEADER_BYTES] + b"".join(units)

    authority = AuthorityProcess(bench, federation.address)
    try:
        federation.client(0, wrap=lambda link: Poisoner(link, identity, [random_units]))
        for at in (1, 2):
            federation.client(at)
        for client in federation.clients:
            assert client.result().reason == "all rounds are published"
    finally:
        authority.close()
    given_up = [event.round for event in federation.journal() if event.kind == "round abandoned"]
    assert given_up == [POISONED_ROUND]
    folder = AuthorityFolder(bench.workspace.folder / "keys").revealer.folder / STATE_FOLDER
    assert [line["event"] for line in audit(folder)] == ["reveal_refused"]
    # What was published is what honest updates sum to: the poisoned ones are in no model.
    rounds = accepted(bench, federation.published())
    assert POISONED_ROUND not in [played.round for played in rounds]
    assert len(rounds) == len(KINDS)
    wanted = compute(bench.plan, bench.users(), rounds)
    assert {bench.model(at) for at in range(3)} == {wanted.model}


def modulus(epoch):
    """Return n, which is public: it is what the coordinator's context holds."""
    return int.from_bytes(KeyEpoch.load(epoch).server_context[CONTEXT_HEAD:], "big")


def audit(state):
    """Return what a party refused."""
    path = state / AUDIT_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
