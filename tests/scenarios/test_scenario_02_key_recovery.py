"""Scenario 2, CPAD: released decryptions give the key away; what this software releases does not.

The same attack runs on a deliberately naive path, which publishes what TenSEAL's `decrypt` returns
as federated averaging does, and on everything that leaves the key holders here.

That attack is linear algebra over exact numbers, and ends with any noise that moves a rounded
coefficient. That is much less than what flooding adds, whose width is proven and not measured. So
flooded values are put to a second test, which much narrower noise fails: whoever guesses the key
knows the errors that decryption makes under it, and looks whether released values agree with them.
"""

from __future__ import annotations

import numpy as np
import pytest
from conformance.protection_suite import Party, make_party, random_vectors
from integration.conftest import Found
from integration.support.bench import N_ITEMS, plan_of
from integration.support.links import Passing
from numpy.typing import NDArray
from scenarios.support.key_recovery import coefficients, recover_key, transform

from fedrec.errors import RefusedError
from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec.protection.approximate import ApproximateMember
from fedrec.protection.blocks import BlockMember
from fedrec.protection.flooding import Flooding, system_gaussian
from fedrec.protection.modular import unpack_blocks
from fedrec.protection.residues import ResidueLayout, Residues
from fedrec.training.layout import Layout, protection_of
from fedrec.wire.link import Link
from fedrec.wire.messages import RevealStatement
from fedrec_client.exporting import export_model
from fedrec_client.private_store import PrivateStore

N_CLIENTS = 20
Floats = NDArray[np.float64]


def spec_of(preset: str) -> VectorSpec:
    """Return real values that fill two blocks but for the counters, of 20 clients."""
    length = {"lean": 2 * 2047, "approximate": 2 * 4095}[preset]
    segment = SegmentSpec(
        name="weights", length=length, max_abs_sum=1024 << 20, real=preset == "approximate"
    )
    return VectorSpec(segments=(segment,), max_summands=N_CLIENTS)


class Round:
    """A round's two summed ciphertexts, which the coordinator has, and its key holder."""

    def __init__(self, preset: str) -> None:
        self.party: Party = make_party(CKKS, preset, spec_of(preset))
        assert isinstance(self.party.member, BlockMember)
        self.cipher = self.party.member._open_cipher()
        self.plan = self.party.protection.chosen
        self.layout = ResidueLayout.of_plan(self.plan)
        self.vectors = random_vectors(spec_of(preset), N_CLIENTS)
        accumulator = self.party.protection.accumulator(self.party.context)
        for vector in self.vectors:
            accumulator.add(self.party.member.protect(vector))
        self.total = accumulator.finish()
        first, second = unpack_blocks(self.layout, memoryview(self.total)[44:])
        self.sums: tuple[Residues, Residues] = (first, second)

    @property
    def scale(self) -> float:
        return 2.0 ** (self.plan.scale_bits or 0)

    def naive(self) -> tuple[Floats, Floats]:
        """Return what a key holder publishes who publishes what `decrypt` returns."""
        first, second = (np.array(self.cipher.decrypt(block)) for block in self.sums)
        return first * self.scale, second * self.scale

    def revealed(self) -> tuple[Floats, Floats]:
        """Return the integers of `reveal`, with the counters that everybody knows, as slots."""
        found = self.party.member.reveal(self.total, N_CLIENTS)
        first, second = found.reshape(2, -1) * self.grid
        return np.append(first, self.counter), np.append(second, self.counter)

    @property
    def grid(self) -> float:
        """What a grid step is in a slot."""
        return 2.0 ** (self.plan.unit_bits or (self.plan.scale_bits or 0,))[0]

    @property
    def counter(self) -> float:
        """What the slot holds in which messages are counted."""
        return N_CLIENTS * 2.0 ** (self.plan.unit_bits or (self.plan.scale_bits or 0,) * 2)[1]

    def revealed_exactly(self) -> tuple[Floats, Floats]:
        """Return the slots of the true sums, without any error."""
        first, second = np.sum(self.vectors, axis=0).reshape(2, -1) * self.grid
        return np.append(first, self.counter), np.append(second, self.counter)

    def matches(self, released: tuple[Floats, Floats]) -> int:
        """Return how many coefficients of the secret key the attack gets right."""
        (prime,) = self.layout.primes
        found = recover_key(self.sums, released, prime)
        return int((found == self.key()).sum())

    def key(self) -> NDArray[np.object_]:
        """Return the true key, as SEAL holds it."""
        secret = self.cipher._context.secret_key().data.data()
        (prime,) = self.layout.primes
        degree = self.layout.degree
        values = np.array([secret[place] for place in range(degree)], dtype=object)
        key = coefficients(values, prime)
        assert set(key.tolist()) == {-1, 0, 1}
        return key


@pytest.fixture(scope="module")
def exact() -> Round:
    return Round("lean")


@pytest.fixture(scope="module")
def approximate() -> Round:
    return Round("approximate")


def test_the_transform_by_hand() -> None:
    # N = 2, q = 5: the fourth roots are 2 and 3, and 2 is the smaller; 1 + 3x is 7 = 2 and 10 = 0.
    assert transform(np.array([1, 3]), 5).tolist() == [2, 0]
    assert coefficients(np.array([2, 0], dtype=object), 5).tolist() == [1, -2]


@pytest.mark.parametrize("preset", ["lean", "approximate"])
def test_scenario_02_a_naive_path_gives_the_whole_key_away(
    preset: str, request: pytest.FixtureRequest
) -> None:
    found: Round = request.getfixturevalue("exact" if preset == "lean" else preset)
    assert found.matches(found.naive()) == found.layout.degree == {"lean": 4096}.get(preset, 8192)


def test_scenario_02_a_coarse_grid_is_no_defence(approximate: Round) -> None:
    unit = 2.0 ** approximate.plan.unit_bits[0]
    assert unit == 4.0
    first, second = (np.rint(values / unit) * unit for values in approximate.naive())
    assert approximate.matches((first, second)) == 8192


def test_scenario_02_exact_integers_give_nothing_away(exact: Round) -> None:
    assert exact.plan.exact
    assert exact.matches(exact.revealed()) == 0
    sums = np.sum(exact.vectors, axis=0)
    assert np.array_equal(exact.party.member.reveal(exact.total, N_CLIENTS), sums)


def flooded(found: Round, width: float) -> tuple[Floats, Floats]:
    """Return decrypted values under noise of a share of the width that flooding asks for."""
    flooding = Flooding(plan=found.plan, n_sums=1, n_releases=1)
    deviation = width * 2.0 ** found.plan.unit_bits[0] * flooding.deviation(0)
    first, second = found.naive()
    return (
        first + deviation * system_gaussian(len(first)),
        second + deviation * system_gaussian(len(second)),
    )


def agreement(found: Round, released: tuple[Floats, Floats]) -> float:
    """Return how far released values agree with the errors under the true key.

    Returns:
        Their correlation times the root of their number: for values that say nothing about the
        errors a normal number of deviation 1.
    """
    naive, honest = np.concatenate(found.naive()), np.concatenate(found.revealed_exactly())
    errors, differences = naive - honest, np.concatenate(released) - honest
    return float(np.corrcoef(errors, differences)[0, 1] * np.sqrt(len(errors)))


def test_scenario_02_flooded_values_give_nothing_away(approximate: Round) -> None:
    released = flooded(approximate, 1.0)
    assert approximate.matches(released) == 0
    assert abs(agreement(approximate, released)) < 6


@pytest.mark.parametrize("narrower", [2.0**-19, 2.0**-24])
def test_scenario_02_narrower_noise_gives_the_errors_away(
    approximate: Round, narrower: float
) -> None:
    """The exact attack is stopped, and yet a right guess of the key is told from a wrong one.

    2^-15 of the width is a margin of s = 30 bits of security; the rest is how far the proven bound
    on the errors lies above those of honest messages.
    """
    released = flooded(approximate, narrower)
    assert approximate.matches(released) == 0
    assert agreement(approximate, released) > 10


def test_scenario_02_noise_below_the_rounding_gives_the_whole_key_away(approximate: Round) -> None:
    assert approximate.matches(flooded(approximate, 2.0**-40)) == 8192


class Statements:
    """Keeps what key holders hand over to the coordinator."""

    def __init__(self) -> None:
        self.handed: list[tuple[RevealStatement, bytes]] = []

    def __call__(self, link: Link) -> Link:
        handed = self.handed

        class Watched(Passing):
            def submit_reveal(self, statement: RevealStatement, sealed: bytes) -> None:
                handed.append((statement, sealed))
                super().submit_reveal(statement, sealed)

        return Watched(link)


def test_scenario_02_an_approximate_federation_tells_its_coordinator_nothing(
    found: Found, tmp_path_factory: pytest.TempPathFactory
) -> None:
    federation = found(plan_of("ckks/approximate"))
    bench = federation.bench
    protection = protection_of(bench.plan, N_ITEMS)
    assert not protection.chosen.exact
    statements = Statements()
    for client in federation.start_all(wrap=statements):
        assert client.result().reason == "all rounds are published"
    assert not [event for event in federation.journal() if event.kind == "round abandoned"]
    assert {bench.model(number) for number in range(bench.n_clients)} == {bench.model(0)}

    # No metric, and no value of the model, in the journal, the statements or the folder.
    assert set(map(tuple, federation.metrics().values())) == {()}
    assert statements.handed
    # A box around nothing: the tag of AES-GCM alone.
    assert {len(statement.locked_metrics) for statement, _ in statements.handed} == {16}
    store = PrivateStore(bench.state(0), read_only=True)
    assert store.state.shared is not None
    raw = store.read(store.state.shared)
    pieces = [raw[at : at + 16] for at in range(256, len(raw) - 16, 16)]
    assert len(pieces) > 50
    files = [path for path in bench.workspace.coordinator_state.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in files] + [sealed for _, sealed in statements.handed]
    assert not [piece for piece in pieces if any(piece in content for content in contents)]

    # And no model leaves without being flooded.
    settings = bench.client_settings(0, federation.address)
    with pytest.raises(RefusedError, match="must not leave"):
        export_model(settings, tmp_path_factory.mktemp("run"))


def test_scenario_02_what_is_sealed_is_not_a_decryption(approximate: Round) -> None:
    """The attack on sealed sums, read as the integers that they hide."""
    from fedrec.identity.sealing import seal

    slots = []
    for values in approximate.revealed():
        sealed = seal(bytes(range(32)), "test", b"", values.astype("<f8").tobytes())
        random = np.frombuffer(sealed[-8 * len(values) :], dtype="<i8")
        slots.append(random / 2.0**30)
    assert approximate.matches((slots[0], slots[1])) == 0


def test_scenario_02_no_path_publishes_unflooded_floats() -> None:
    """Integers leave `reveal`, and a statement of an approximate plan has no room for metrics."""
    member = make_party(CKKS, "approximate", spec_of("approximate")).member
    assert isinstance(member, ApproximateMember)
    total = make_total(member)
    assert member.reveal(total, 1).dtype == np.int64
    plan = plan_of("ckks/approximate")
    layout = Layout.of(plan, N_ITEMS)
    chosen = CKKS.plan(layout.vector_spec, preset="approximate")
    assert not chosen.releases_metrics


def make_total(member: ApproximateMember) -> bytes:
    """Return the sum of one message of zeros."""
    spec = spec_of("approximate")
    protection = CKKS(spec, CKKS.plan(spec, preset="approximate"))
    message = member.protect(np.zeros(spec.length, dtype=np.int64))
    context = protection.generate()[0][:-16] + message[28:44]
    accumulator = protection.accumulator(context)
    accumulator.add(message)
    return accumulator.finish()
