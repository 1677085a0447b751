"""What every protection of several steps must do: both sides of its rounds."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from conformance.protection_suite import (
    BAD_VECTORS,
    DAMAGES,
    SPEC,
    PlanSuite,
    extreme,
    random_vectors,
)
from conformance.round_table import RoundTable, another_round, packed

from fedrec.errors import (
    FedrecError,
    KeysError,
    MalformedUpdate,
    PartialCell,
    ProtocolError,
    RoundError,
)
from fedrec.plan.protections import about_protection
from fedrec.protection import ProtectionSettings, SegmentSpec, VectorSpec
from fedrec.protection.protection import in_one_step, with_encryptor
from fedrec.protection.round_protocol import COLLECTING, SUMMING

N_CLIENTS = 10
FRAMING_BYTES = 64
"""Around a message or a client's part of one, at most."""
LONG = bytes(range(256)) * 4096


class RoundSuite(PlanSuite):
    """The conformance suite of a round protocol; a subclass names its protection and preset."""

    spec: ClassVar[VectorSpec] = replace(SPEC, max_summands=N_CLIENTS)

    @pytest.fixture
    def settings(self):
        return self.kind.settings_type(name=self.kind.name)

    @pytest.fixture
    def table(self, settings):
        return self.seated(settings)

    def seated(self, settings: ProtectionSettings, **options: object) -> RoundTable:
        """Return a round of random vectors, in which every user has begun."""
        protection = self.kind(self.spec, self.kind.plan(self.spec, preset=self.preset))
        vectors = random_vectors(self.spec, N_CLIENTS)
        return RoundTable(protection, settings, **{"vectors": vectors, **options})  # type: ignore[arg-type]

    def test_steps_are_told_apart(self):
        steps = self.kind.steps.all
        assert len({step.name for step in steps}) == len({step.phase for step in steps})
        assert len(steps) == len({step.name for step in steps}) > 1
        assert {step.phase for step in steps} & {COLLECTING, SUMMING, "revealing"} == {COLLECTING}

    def test_the_sum_is_exact_and_every_user_agreed_on_the_same(self, table):
        """Every client is read back from what it stored between its steps."""
        table.play()
        assert np.array_equal(table.finish(), np.sum(list(table.vectors.values()), axis=0))
        agreed = {table.side(who).agreement for who in table.ids}
        assert agreed == {table.coordinator.agreement} and agreed != {b""}

    @pytest.mark.parametrize("sign", [1, -1])
    def test_sums_at_the_bounds_are_exact(self, settings, sign):
        vector = extreme(self.spec, sign, N_CLIENTS)
        table = self.seated(settings, vectors=[vector] * N_CLIENTS)
        table.play()
        assert np.array_equal(table.finish(), N_CLIENTS * vector)

    def test_another_vector_is_summed_under_the_same_parameters(self, settings):
        part = replace(self.spec, segments=self.spec.segments[1:3])
        table = self.seated(settings, spec=part, vectors=random_vectors(part, N_CLIENTS))
        table.play()
        assert np.array_equal(table.finish(), table.summed)

    @pytest.mark.parametrize("length", [1, 300_000])
    def test_the_shortest_and_a_long_vector(self, settings, length):
        segment = SegmentSpec(name="all", length=length, max_abs_sum=2**20)
        spec = VectorSpec(segments=(segment,), max_summands=3)
        protection = self.kind(spec, self.kind.plan(spec, preset=self.preset))
        table = RoundTable(protection, settings, random_vectors(spec, 3))
        table.play()
        assert np.array_equal(table.finish(), table.summed)

    def test_sizes_are_those_promised(self, table):
        table.play()
        vector = self.kind.steps.vector.name
        assert {len(one) for one in table.sent[vector].values()} == {table.plan.message_bytes}
        price = about_protection(self.kind.name).steps_price(table.asked)
        assert price is not None
        framing = FRAMING_BYTES * len(self.kind.steps.all) + FRAMING_BYTES * N_CLIENTS
        for who in table.ids:
            up = sum(len(found[who]) for step, found in table.sent.items() if step != vector)
            down = sum(len(found[who]) for found in table.fetched.values())
            assert 0.9 * price.up_bytes <= up <= price.up_bytes + framing
            assert 0.9 * price.down_bytes <= down <= price.down_bytes + framing
        assert about_protection(self.kind.name).warnings(table.asked) and price.name

    def test_what_the_coordinator_gets_says_nothing_of_a_vector(self, settings, table):
        table.play()
        again = self.seated(settings, people=table.people, number=2)
        again.play()
        for who, vector in table.vectors.items():
            plain = packed(table.spec, vector)[44:]
            runs = [plain[start : start + 16] for start in range(0, len(plain) - 16, 512)]
            for found in table.sent.values():
                assert not any(run in found[who] for run in runs)
        name = self.kind.steps.vector.name
        for who in table.ids:
            one, other = (np.frombuffer(t.sent[name][who][44:], "u1") for t in (table, again))
            # Of independent bytes one in 256 is alike by chance; the vectors were the same.
            assert np.mean(one == other) < 0.02
        assert again.coordinator.agreement != table.coordinator.agreement

    def test_a_side_made_again_from_what_was_sent_is_the_same(self, table):
        for step in table.later:
            replayed = table.replayed(up_to=step.name)
            assert replayed.agreement == table.coordinator.agreement
            for who in table.ids:
                expected = table.coordinator.material(step.name, who)
                assert replayed.material(step.name, who) == expected
            table.take(step)
            table.coordinator.close(step.name)
        assert table.replayed().finish() == table.coordinator.finish()

    def test_damaged_first_messages_are_refused(self, table):
        protocol, terms = table.protocol, table.terms
        one, other = table.ids[:2]
        body = table.sent[self.kind.steps.first.name][one]
        protocol.check_first(terms, one, body)
        assert protocol.base_state(body) == terms.base_state
        for damaged in (b"", body[:-1], body + b"\0", LONG):
            with pytest.raises(FedrecError):
                protocol.check_first(terms, one, damaged)
        for nonsense in (b"", LONG):
            with pytest.raises(ProtocolError):
                protocol.base_state(nonsense)
        with pytest.raises(FedrecError):
            protocol.check_first(terms, other, body)
        with pytest.raises(FedrecError):
            protocol.check_first(another_round(terms), one, body)

    def test_damaged_messages_are_refused_and_change_nothing(self, table):
        for step in table.later:
            if not step.brings_vector:
                who = table.ids[0]
                # A client's side goes on from what it stored, so that it answers alike twice.
                stored = table.stored(who)
                body = table.message(step, who)
                table.restore(who, stored)
                for damaged in (body[:-1], body + b"\0", LONG):
                    with pytest.raises(FedrecError):
                        table.coordinator.add(step.name, who, damaged)
                with pytest.raises(FedrecError):
                    table.coordinator.add(step.name, table.stranger, body)
            table.take(step)
            table.coordinator.close(step.name)
        assert np.array_equal(table.finish(), table.summed)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damaged_vectors_are_refused_and_the_sum_stays(self, table, damage):
        step = self.kind.steps.vector
        table.play(before=step.name)
        who = table.ids[0]
        stored = table.stored(who)
        message = table.message(step, who)
        with pytest.raises(FedrecError):
            table.coordinator.add_vector(who, damage(message))
        with pytest.raises(FedrecError):
            table.coordinator.add_vector(table.stranger, message)
        table.restore(who, stored)
        table.take(step)
        table.coordinator.close(step.name)
        for later in table.later[table.later.index(step) + 1 :]:
            table.take(later)
            table.coordinator.close(later.name)
        assert np.array_equal(table.finish(), table.summed)

    @pytest.mark.parametrize("change", BAD_VECTORS.values(), ids=BAD_VECTORS)
    def test_other_inputs_are_refused(self, table, change):
        step = self.kind.steps.vector
        table.play(before=step.name)
        who = table.ids[0]
        material = table.coordinator.material(step.name, who)
        with pytest.raises(MalformedUpdate):
            table.side(who).protect(material, change(self.spec), table.spec, table.plan)

    def test_what_a_client_fetches_is_checked(self, table):
        for step in table.later:
            who = table.ids[0]
            material = table.coordinator.material(step.name, who)
            for damaged in (material[:-1], material + b"\0", LONG):
                with pytest.raises(FedrecError):
                    if step.brings_vector:
                        vector = table.vectors[who]
                        table.side(who).protect(damaged, vector, table.spec, table.plan)
                    else:
                        table.side(who).answer(step.name, damaged)
            table.take(step)
            table.coordinator.close(step.name)

    def test_steps_are_taken_in_their_order(self, table):
        who = table.ids[0]
        for step in (self.kind.steps.first, *table.later[1:]):
            if not step.brings_vector:
                with pytest.raises(FedrecError):
                    table.side(who).answer(step.name, b"")
        assert not table.coordinator.can_finish
        with pytest.raises(FedrecError):
            table.coordinator.finish()

    def test_a_client_that_drops_out_is_survived_as_declared(self, settings):
        """Never is there another sum than that of the vectors that are here."""
        declared = "protection.dropout_share" in about_protection(self.kind.name).own_settings
        for step in self.kind.steps.all[1:]:
            table = self.seated(settings)
            try:
                table.play(gone_at=step.name, gone=table.ids[:1])
                found = table.finish()
            except FedrecError:
                assert not declared, step.name
            else:
                assert np.array_equal(found, table.summed)

    def test_a_vector_is_protected_once(self, table):
        """Under the same masks two vectors would show their difference."""
        step, who = self.kind.steps.vector, table.ids[0]
        table.play(before=step.name)
        table.message(step, who)
        with pytest.raises(FedrecError):
            table.message(step, who)

    def test_clients_help_to_no_sum_without_the_others_of_their_cell(self, settings):
        """The coordinator leaves one out of the round, and every other user takes all steps."""
        table = self.seated(settings, cell=True)
        del table.sent[self.kind.steps.first.name][table.ids[0]]
        with pytest.raises(PartialCell):
            table.play(gone_at=table.later[0].name, gone=table.ids[:1])

    def test_too_few_are_refused(self, table):
        firsts = table.sent[self.kind.steps.first.name]
        for count in (0, 1, 2):
            some = {who: firsts[who] for who in table.ids[:count]}
            with pytest.raises(FedrecError):
                table.protocol.collect(table.terms, some, table.spec, table.plan)

    def test_a_state_is_read_by_its_owner_in_its_round_alone(self, table):
        one, other = table.ids[:2]
        stored = table.stored(one)
        with pytest.raises(KeysError):
            table.side(one, another_round(table.terms))
        for damaged in (b"", stored[:-1], LONG, table.stored(other)):
            table.restore(one, damaged)
            with pytest.raises(KeysError):
                table.side(one)

    def test_a_side_shows_and_copies_nothing(self, table):
        side = table.side(table.ids[0])
        assert "hidden" in repr(side)
        for steal in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                steal(side)

    def test_there_is_nothing_outside_a_round(self, table):
        context, _ = table.protection.generate()
        table.protection.envelope(context)
        with pytest.raises(RoundError):
            in_one_step(table.protection)
        with pytest.raises(KeysError):
            with_encryptor(table.protection)
