"""Who holds the key opens sums of enough updates only, and nobody's word alone is published."""

from __future__ import annotations

import json
import threading

import pytest
from integration.conftest import Found
from integration.support.bench import N_ITEMS, Bench, federal, merged, plan_of
from integration.support.checks import check_against_one_process
from integration.support.hostile import TRICKS, Falsifier, Liars, Silence
from integration.support.links import DEADLINE_SECONDS, poll
from integration.support.parties import Federation

from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.protection import Accumulator
from fedrec.training.layout import Layout, protection_of
from fedrec.training.rows import ROW_STEP
from fedrec_client.audit import AUDIT_FILE
from fedrec_client.events import ClientEvent


def check_finished(federation: Federation) -> None:
    """All clients ended with the model of an undisturbed run."""
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert not [event for event in federation.journal() if event.kind == "round abandoned"]
    assert federal(federation.metrics()) == federal(merged().metrics)
    bench = federation.bench
    assert {bench.model(number) for number in range(bench.n_clients)} == {merged().model}


@pytest.mark.parametrize("protection", ["bfv", "ckks", "paillier"])
def test_one_clients_ciphertext_is_not_a_sum(found: Found, protection: str) -> None:
    federation = found(plan_of(protection))
    bench = federation.bench
    epoch = KeyEpoch.load(bench.workspace.epoch)
    protecting = protection_of(bench.plan, N_ITEMS)

    def empty() -> Accumulator:
        # Of a round after the count, which is the first that is attacked.
        spec = Layout.of(bench.plan, ROW_STEP).vector_spec
        return protecting.over(spec).accumulator(epoch.server_context)

    links = []
    for number in range(bench.n_clients):

        def hostile(link: object, number: int = number) -> Falsifier:
            links.append(Falsifier(link, state=bench.state(number), make=empty))  # type: ignore[arg-type]
            return links[-1]

        federation.client(number, wrap=hostile)
    check_finished(federation)
    assert sum(len(link.tried) for link in links) >= 2 * len(TRICKS)
    for number, link in enumerate(links):
        assert link.revealed == [], "a sum was revealed that is one client's update"
        assert link.opened == [], "the key was used on a sum that is one client's update"
        refused = audit(bench, number)
        assert [line["event"] for line in refused] == ["reveal_refused"] * len(link.tried)
        assert {line["code"] for line in refused} <= {"reveal_refused"}


def audit(bench: Bench, number: int) -> list[dict[str, str]]:
    """Return what a client refused."""
    path = bench.state(number) / AUDIT_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("role", ["reveal", "verify"])
def test_a_silent_key_holder_is_replaced(found: Found, role: str) -> None:
    federation = found(plan_of("bfv"))
    silence = Silence(role, 3)
    spoken = threading.Event()

    def hear(event: ClientEvent) -> None:
        if (event.name, event.round) == ("revealed", 3):
            spoken.set()

    federation.start_all(wrap=silence, on_event=hear)
    try:
        assert spoken.wait(DEADLINE_SECONDS)
        poll(lambda: silence.chosen.who)
        federation.clock.jump(federation.bench.plan.rounds.reveal_timeout_seconds)
        (published,) = poll(lambda: [r for r in federation.published() if r.round == 3])
        spoke = {statement.client_id for statement in published.statements}
        assert silence.chosen.who is not None
        assert silence.chosen.who not in spoke
        assert len(spoke) == 2
    finally:
        silence.released.set()
    check_finished(federation)


@pytest.mark.parametrize("role", ["reveal", "verify"])
def test_a_third_decides_between_two_words(found: Found, role: str) -> None:
    federation = found(plan_of("bfv"))
    bench = federation.bench
    identities = [Identity.load(bench.state(number)) for number in range(bench.n_clients)]
    liars = Liars(role, 3, {identity.client_id: identity for identity in identities})
    federation.start_all(wrap=liars)
    check_finished(federation)
    (lie,) = liars.lies
    (published,) = (r for r in federation.published() if r.round == 3)
    spoke = {statement.client_id for statement in published.statements}
    assert spoke == {identity.client_id for identity in identities} - {lie.client_id}
    asked = [e for e in federation.journal() if e.kind == "key holder asked" and e.round == 3]
    assert len(asked) >= 3


def test_sums_that_nobody_adds_up_are_opened_by_their_tags(found: Found) -> None:
    """Five clients, of whom key holders would add up three: the same bits as without tags."""
    plan = plan_of("bfv", 5, recompute_limit=3, clients_per_round=5)
    federation = found(plan, 5)
    assert protection_of(plan, N_ITEMS).chosen.n_tags
    for number in range(5):
        federation.client(number)
    check_against_one_process(federation)
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    opened = [e for c in federation.clients for e in c.events if e.name == "revealed"]
    assert len(opened) >= 2 * len(federation.published())
