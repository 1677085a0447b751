"""What travels: rows that are active, noise, and the messages themselves."""

import signal
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from world.bench import N_ITEMS, merged, plan_of
from world.children import Child, ClientProcess, KillClient, Proxy, close_all
from world.clock import poll
from world.held_steps import N_CLIENTS, Gate, let_it_drop_out, whole_federation, without_cell_of
from world.links import Passing
from world.plans import params

from fedrec.errors import MalformedUpdate, ProtocolError
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.certificates import CERTIFICATE_FILE
from fedrec.identity.document import write_secret
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_issuer
from fedrec.model.state import PrivateState
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan, PrivacySettings
from fedrec.wire.chunks import Blob
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

WINDOW = 8
"""Two float32 values in a row: chance finds such a match once in 2^64 positions."""


class Tap:
    """Records what goes through a proxy."""

    def __init__(self, address, coordinator, client):
        self._parts: list[bytes] = []
        self._lock = threading.Lock()
        self.proxy = Proxy(address, self._keep, coordinator=coordinator, client=client)

    def _keep(self, data):
        with self._lock:
            self._parts.append(data)

    @property
    def recorded(self):
        """Everything so far."""
        with self._lock:
            return b"".join(self._parts)


@contextmanager
def tapped(address, bench):
    """Put a tap in front of every client."""
    keys = bench.workspace.folder / "keys"
    issuer = read_issuer(keys / "authority.pub.json")
    taps = []
    for number in range(bench.n_clients):
        state = bench.state(number)
        own = Identity.load(state).credentials((state / CERTIFICATE_FILE).read_bytes(), issuer)
        write_secret(state.parent / "tapped.pem", own.to_pem())
        taps.append(Tap(address, keys / "coordinator.pem", state.parent / "tapped.pem"))
    try:
        yield taps
    finally:
        for tap in taps:
            tap.proxy.close()


class Payloads:
    """Remembers what clients upload, to know that the search finds what is there."""

    def __init__(self):
        self.sent: list[bytes] = []

    def __call__(self, link):
        sent = self.sent

        class Watched(Passing):
            def submit_update(self, header, payload):
                sent.append(payload)
                return self.link.submit_update(header, payload)

        return Watched(link)


class Privates:
    """Every private state that a client ever stored."""

    def __init__(self, bench, number):
        self._folder = bench.state(number)
        self.seen: dict[str, bytes] = {}

    def __call__(self, event):
        for path in self._folder.glob("private-*.bin"):
            self.seen.setdefault(path.name, path.read_bytes())

    def windows(self):
        """Return all pieces of all vectors that were not zero."""
        found = set()
        for raw in self.seen.values():
            for values in PrivateState.from_bytes(raw).tensors.values():
                data = np.ascontiguousarray(values).tobytes()
                found |= {data[at : at + WINDOW] for at in range(0, len(data) - WINDOW + 1, 4)}
        return found


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
def test_nothing_private_is_written_to_a_socket(found, protection):
    federation = found(plan_of(protection))
    bench = federation.bench
    payloads = Payloads()
    privates = [Privates(bench, number) for number in range(bench.n_clients)]
    with tapped(federation.address, bench) as taps:
        for number, (tap, private) in enumerate(zip(taps, privates, strict=True)):
            federation.client(
                number, client__coordinator=tap.proxy.address, wrap=payloads, on_event=private
            )
        for client in federation.clients:
            client.result()
        recorded = b"".join(tap.recorded for tap in taps)
    check_that_the_search_finds(recorded, payloads.sent)
    for users in bench.users():
        for user in users.user_ids:
            name = user.partition("@")[0]
            assert name.encode() not in recorded
    for private in privates:
        assert len(private.seen) >= 3
        assert not [piece for piece in private.windows() if piece in recorded]
    for number in range(bench.n_clients):
        for secret in secrets_of(bench.state(number)):
            assert secret not in recorded
    if protection != "none":
        assert no_readable_model(bench, recorded)


def check_that_the_search_finds(recorded, payloads):
    """What is known to be sent is found, but for the bytes between two frames."""
    assert len(payloads) == 15
    for payload in payloads:
        pieces = [payload[at : at + 64] for at in range(0, len(payload) - 64, 64)]
        seen = sum(piece in recorded for piece in pieces)
        assert seen >= 0.9 * len(pieces)


def secrets_of(state):
    """Return raw and written forms of a client's secret keys."""
    identity = Identity.load(state)
    keys = [
        identity._signing_key.private_bytes_raw(),
        identity._exchange_key.private_bytes_raw(),
        identity._tls_key.private_numbers().private_value.to_bytes(32, "big"),
    ]
    return [form for key in keys for form in (key, key.hex().encode())]


def no_readable_model(bench, recorded):
    """Under encryption the model itself is not readable on the line either."""
    store = PrivateStore(bench.state(0), read_only=True)
    assert store.state.shared is not None
    raw = store.read(store.state.shared)
    return not any(raw[at : at + 16] in recorded for at in range(256, len(raw) - 16, 16))


def with_least(plan, least):
    federation = plan.federation.model_copy(update={"minimum_item_users": least})
    return plan.model_copy(update={"federation": federation})


@pytest.mark.parametrize("protection", params("bfv", long=["masks", "none"]))
def test_updates_have_two_lengths_which_the_journal_explains(found, protection):
    federation = found(plan_of(protection))
    for client in federation.start_all():
        assert client.result().reason == "all rounds are published"
    plan = federation.bench.plan
    planned = protection_of(plan, N_ITEMS)
    counting = planned.over(Layout.counting(plan, N_ITEMS).vector_spec).chosen.message_bytes
    training = planned.over(Layout.of(plan, 256).vector_spec).chosen.message_bytes
    for published in federation.published():
        wanted = counting if published.kind == "count" else training
        rows = N_ITEMS if published.kind == "count" else 256
        assert {header.length for header in published.contributions} == {wanted}
        assert {header.n_rows for header in published.contributions} == {rows}
    for event in federation.journal():
        if "rows" in event.fields:
            assert event.fields["rows"] == 256
    models = {federation.bench.model(number) for number in range(3)}
    assert models == {merged().model}


@pytest.mark.parametrize("protection", params("bfv", long=["none"]))
def test_a_run_in_which_no_item_has_enough_holders_names_the_setting(found, protection):
    federation = found(with_least(plan_of(protection), 1000))
    for client in federation.start_all():
        outcome = client.result()
        assert outcome.failed
        assert "federation.minimum_item_users = 1000" in outcome.reason
        assert outcome.version == 1


class OfOtherRows(Passing):
    """Says that its updates after the count cover other rows, or sends other ones' length."""

    def __init__(self, link, identity, changes):
        super().__init__(link)
        self._identity = identity
        self._changes = changes

    def submit_update(self, header, payload):
        if header.kind == "train":
            payload = payload if self._changes else payload[:-8]
            blob = Blob.of(payload)
            header = replace(header, length=blob.length, digest=blob.digest)
            header = replace(header, **self._changes)  # type: ignore[arg-type]
            header = replace(header, signature=self._identity.sign(header.statement()))
        return self.link.submit_update(header, payload)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"n_rows": 512}, ProtocolError),
        ({"rows_digest": b"x" * 32}, ProtocolError),
        ({}, MalformedUpdate),
    ],
    ids=["another number", "another list", "another length"],
)
@pytest.mark.parametrize("protection", params("none", long=["masks"]))
def test_a_coordinator_refuses_updates_over_other_rows(found, protection, changes, error):
    """It is refused before a byte of it is kept; under bfv by key holders, too."""
    federation = found(plan_of(protection, 3, total=1), 3)
    identity = Identity.load(federation.bench.state(2))
    unfit = federation.client(2, wrap=lambda link: OfOtherRows(link, identity, changes))
    for number in range(2):
        federation.client(number)
    if protection == "none":
        assert isinstance(unfit.failure(), error)
    else:
        # Under masks what others were told may be at fault: the client notes it and goes on.
        refused = federation.bench.state(2) / AUDIT_FILE
        # Not when the file is there: its first line is written a moment after it is made.
        assert poll(lambda: refused.exists() and "\n" in refused.read_text())
        assert error.code in refused.read_text()


def noisy(protection, **privacy):
    asked = PrivacySettings.model_validate({"expected_users": 20.0, **privacy})
    return plan_of(protection, 3, "fedmf").model_copy(update={"privacy": asked})


@pytest.mark.parametrize(
    ("protection", "mechanism"),
    [
        ("bfv", "gaussian"), ("none", "laplace"), ("masks", "gaussian"),
        pytest.param("paillier", "gaussian", marks=pytest.mark.long),
        pytest.param("masks", "laplace", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_one_noisy_model_for_every_client(found, protection, mechanism):
    plan = noisy(protection, mechanism=mechanism)
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert {outcome.reason for outcome in outcomes} == {"all rounds are published"}
    bench = federation.bench
    models = {bench.model(number) for number in range(3)}
    assert len(models) == 1
    assert models != {merged("fedmf").model}
    assert all(not any(values) for values in federation.metrics().values())
    for number in range(3):
        check_ledger(bench, number, plan.rounds.total)


@pytest.mark.parametrize("protection", params("masks", long=["bfv"]))
def test_sketch_under_noise_has_two_sums_and_no_grades(found, protection):
    values = plan_of(protection, 3, "fedmf").model_dump()
    values["algorithm"] = {"name": "sketch", "dim": 4, "form": "plain", "regularisation": 1.0}
    values["update"] = {"structure": "dense"}
    values["privacy"] = {"mechanism": "gaussian", "expected_users": 20.0}
    values["rounds"]["total"] = 2
    plan = Plan.model_validate(values)
    federation = found(plan, 3)
    for number in range(3):
        federation.client(number)
    outcomes = [client.result() for client in federation.clients]
    assert {outcome.reason for outcome in outcomes} == {"all rounds are published"}
    bench = federation.bench
    assert len({bench.model(number) for number in range(3)}) == 1
    assert all(not any(values) for values in federation.metrics().values())
    for number in range(3):
        check_ledger(bench, number, 2)


def check_ledger(bench, number, n_rounds):
    """Check that a client charged each of its users so many rounds."""
    by = mechanism_of(bench.plan)
    ledger = PrivacyLedger.of(PrivateStore(bench.state(number), read_only=True))
    assert len(ledger.accounts) == len(bench.users()[number])
    assert {(account.rounds, account.spent) for account in ledger.accounts.values()} == {
        (n_rounds, by.cost.times(n_rounds))
    }


@pytest.mark.parametrize(
    ("step", "charged"),
    [
        ("vector", 2),
        pytest.param("shares", 1, marks=pytest.mark.long),
        pytest.param("signature", 3, marks=pytest.mark.long),
    ],
)
def test_who_drops_out_under_masks_pays_for_a_vector_and_for_nothing_else(found, step, charged):
    """The rounds of the others go on, with the noise of six, where three are enough; who did not
    do what was asked is left out of the next one, too.
    """
    plan = noisy("masks", mechanism="gaussian").model_copy(
        update={"rounds": plan_of("masks", 3, mask_step_seconds=60.0).rounds}
    )
    gate = Gate(3, step)
    federation = whole_federation(found, {4: gate}, 3, plan)
    with gate:
        let_it_drop_out(federation, gate, step)
        poll(lambda: federation.coordinator.engine.run.state.published >= 3)
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    bench = federation.bench
    assert len({bench.model(number) for number in range(N_CLIENTS)}) == 1
    assert len(federation.published()[2].contributions) == (6 if step != "signature" else N_CLIENTS)
    others = without_cell_of(federation, 4)
    for number in range(N_CLIENTS):
        # Its cell's others uploaded, and are left out of the next round together with it.
        of_cell = plan.rounds.total - (step != "signature")
        total = plan.rounds.total if number in others else of_cell
        check_ledger(bench, number, charged if number == 4 else total)
    charges = [event.round for event in federation.journal() if event.fields.get("charged")]
    assert charges == [2, 3, 4]


@pytest.mark.long
def test_a_client_killed_under_masks_charges_every_round_once(found):
    plan = noisy("masks", mechanism="gaussian")
    federation = found(plan, 3)
    victim = 2
    for number in range(victim):
        federation.client(number)
    children: list[Child] = []
    try:
        for kill in (
            KillClient(place="after keys", round=2),
            KillClient(place="before the upload", round=2),
            KillClient(place="before shares", round=3),
            KillClient(place="after signature", round=3),
            KillClient(place="before answer", round=4),
        ):
            children.append(ClientProcess(federation.bench, victim, federation.address, kill))
            assert children[-1].ended(kill) == -signal.SIGKILL, kill
        children.append(ClientProcess(federation.bench, victim, federation.address))
        assert children[-1].answer() == "all rounds are published"
    finally:
        close_all(children)
    for client in federation.clients:
        assert client.result().reason == "all rounds are published"
    assert [event for event in federation.journal() if event.kind == "round abandoned"] == []
    for number in range(3):
        check_ledger(federation.bench, number, plan.rounds.total)
