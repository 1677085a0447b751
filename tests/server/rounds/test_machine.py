"""What a round does, one situation at a time."""

from dataclasses import replace

import pytest
from world.machine import World, client, header, rules, terms_of

from fedrec.errors import (
    ConflictingUpload,
    NotInRoster,
    ProtocolError,
    RoundClosed,
    RoundError,
)
from fedrec.ids import RoundId
from fedrec.wire.messages import Train, Wait
from fedrec_server.polling import task_for
from fedrec_server.rounds.changes import (
    AlreadyCounted,
    CollectingEnded,
    RoundAbandoned,
)
from fedrec_server.rounds.events import (
    EpochInstalled,
    Polled,
    Restarted,
    StopRequested,
    Uploaded,
)


def kinds(changes):
    return [type(change).__name__ for change in changes]


def plain(n_clients=4, **rounds):
    return World.new(rules(needs_reveal=False, **{"minimum_clients": 2, **rounds}), n_clients)


def encrypted(n_clients=4, **rounds):
    return World.new(rules(needs_reveal=True, **rounds), n_clients)


def reported(n_clients=4, **rounds):
    """Return a run whose count round is published and told of."""
    world = encrypted(n_clients, **rounds)
    world.tick(*range(n_clients))
    for number in range(n_clients):
        world.upload(number)
    world.sum()
    world.report(0)
    world.report(1)
    return world


class TestCollecting:
    def test_opens_only_when_enough_are_live(self):
        world = plain()
        assert world.tick(0) == ()
        assert kinds(world.tick(0, 1)) == ["RoundOpened"]

    def test_encryption_needs_three_whatever_the_settings_say(self):
        world = encrypted(minimum_clients=1, minimum_summands=1)
        assert world.tick(0, 1) == ()
        assert kinds(world.tick(0, 1, 2)) == ["RoundOpened"]

    def test_strangers_do_not_count_as_live(self):
        assert plain().tick(0, 77) == ()

    def test_closes_when_every_client_arrived(self):
        world = plain()
        world.tick(0, 1)
        assert kinds(world.upload(0)) == ["UpdateCounted"]
        assert kinds(world.upload(1)) == ["UpdateCounted", "CollectingEnded"]

    def test_without_encryption_too_only_one_model_is_trained(self):
        world = plain(3)
        world.tick(0, 1, 2)
        world.upload(0, base_state=b"x" * 32)
        world.upload(1)
        ended = world.upload(2)[-1]
        assert isinstance(ended, CollectingEnded) and ended.left_out == {client(0)}

    def test_same_upload_is_a_duplicate_in_every_phase(self):
        world = plain()
        world.tick(0, 1)
        world.upload(0)
        assert kinds(world.upload(0)) == ["AlreadyCounted"]
        world.upload(1)
        assert isinstance(world.upload(0)[0], AlreadyCounted)

    def test_other_upload_conflicts(self):
        world = plain()
        world.tick(0, 1)
        world.upload(0)
        with pytest.raises(ConflictingUpload):
            world.upload(0, "other")

    def test_late_upload_is_told_so(self):
        world = plain(4)
        world.tick(0, 1)
        world.upload(0)
        world.upload(1)
        with pytest.raises(RoundClosed):
            world.upload(2)
        world.sum()
        with pytest.raises(RoundClosed):
            world.apply(Uploaded(now=world.now, header=header(1, client(2))))

    def test_round_of_the_future_and_stranger_are_refused(self):
        world = plain()
        world.tick(0, 1)
        with pytest.raises(RoundError, match="not open"):
            world.apply(Uploaded(now=world.now, header=header(2, client(0))))
        with pytest.raises(NotInRoster):
            world.apply(Uploaded(now=world.now, header=header(1, client(99))))

    def test_update_for_another_kind_or_base_is_refused(self):
        world = plain()
        world.tick(0, 1)
        before = world.state
        for other in (
            header(1, client(0), kind="train"),
            header(1, client(0), kind="evaluate"),
            header(1, client(0), base_round=1),
        ):
            with pytest.raises(ProtocolError, match="Round 1 is of kind count from version 0"):
                world.apply(Uploaded(now=world.now, header=other))
        assert world.state is before
        world.upload(0)
        with pytest.raises(ProtocolError, match="kind train"):
            world.apply(Uploaded(now=world.now, header=header(1, client(0), kind="train")))

    def test_who_comes_later_is_offered_the_round(self):
        world = plain()
        world.tick(0, 1)
        assert task_for(world.state, client(2), RoundId(0), world.now) is None
        assert kinds(world.apply(Polled(now=world.now, client_id=client(2)))) == ["ClientJoined"]
        task = task_for(world.state, client(2), RoundId(0), world.now)
        assert task is not None and isinstance(task.task, Train)
        world.upload(0)
        assert kinds(world.upload(1)) == ["UpdateCounted"], "the round waits for the third"
        assert CollectingEnded in {type(change) for change in world.upload(2)}

    def test_recompute_limit_closes_an_encrypted_round(self):
        world = encrypted(6, recompute_limit=3)
        world.tick(*range(6))
        assert world.state.current is not None and len(world.state.current.asked) == 3
        asked = [n for n in range(6) if client(n) in world.state.current.asked]
        world.upload(asked[0])
        world.upload(asked[1])
        assert "CollectingEnded" in kinds(world.upload(asked[2]))

    def test_over_provision_asks_more_and_closes_with_the_first(self):
        world = plain(10, clients_per_round=3, over_provision=2.0)
        world.tick(*range(10))
        assert world.state.current is not None and len(world.state.current.asked) == 6
        asked = [n for n in range(10) if client(n) in world.state.current.asked]
        world.upload(asked[0])
        world.upload(asked[1])
        assert "CollectingEnded" in kinds(world.upload(asked[2]))
        outsider = next(n for n in range(10) if n not in asked)
        with pytest.raises(RoundClosed):
            world.upload(outsider)

    def test_selection_depends_on_seed_and_round_only(self):
        first, second = (plain(10, clients_per_round=3) for _ in range(2))
        first.tick(*range(10))
        second.tick(*reversed(range(10)))
        assert first.state.current is not None
        assert first.state.current == second.state.current

    def test_deadline_closes_with_enough_and_abandons_with_fewer(self):
        world = plain(4, deadline_seconds=10)
        world.tick(0, 1, 2)
        world.upload(0)
        world.upload(1)
        assert world.tick(seconds=9.9) == ()
        assert kinds(world.tick(seconds=0.2)) == ["CollectingEnded"]
        world.sum()
        world.tick(0, 1, 2)
        world.upload(0)
        (abandoned,) = world.tick(seconds=11)
        assert isinstance(abandoned, RoundAbandoned)
        assert abandoned.reason == "1 of the required 2 updates arrived in time"

    def test_abandoned_number_is_not_used_again_and_its_kind_is(self):
        world = plain(deadline_seconds=10)
        world.tick(0, 1)
        world.tick(seconds=11)
        world.tick(0, 1)
        assert (world.state.current.number, world.state.current.kind) == (2, "count")
        assert world.state.current.base_round == 0

    def test_after_three_in_a_row_the_pauses_grow_and_nothing_ends_the_run(self):
        world = plain(deadline_seconds=10)
        pauses = []
        for _ in range(9):
            while not world.tick(0, 1, seconds=1):
                pass
            (abandoned,) = world.tick(seconds=11)
            assert isinstance(abandoned, RoundAbandoned)
            pauses.append(abandoned.pause_seconds)
            closed_at = world.now
            while not (opened := world.tick(0, 1, seconds=1)):
                pass
            assert kinds(opened) == ["RoundOpened"]
            assert world.now - closed_at == max(1, abandoned.pause_seconds)
            world.tick(seconds=11)
            pauses.append(world.state.abandonments.retry_at - world.now)
        assert pauses[:8] == [0, 0, 10, 20, 40, 80, 160, 160]
        assert set(pauses[8:]) == {160} and world.state.ending is None

    def test_clock_set_back_does_not_lengthen_a_round(self):
        world = plain(deadline_seconds=10)
        world.tick(0, 1)
        world.tick(seconds=-3600)
        assert kinds(world.tick(seconds=11)) == ["RoundAbandoned"]

    def test_restart_gives_the_round_its_full_time_again(self):
        world = plain(deadline_seconds=10)
        world.tick(0, 1)
        world.now += 3600
        world.apply(Restarted(now=world.now))
        assert world.tick(seconds=9) == ()

    def test_restart_with_another_epoch_abandons(self):
        world = plain()
        world.tick(0, 1)
        world.state = replace(world.state, rules=replace(world.state.rules, epoch=2))
        assert kinds(world.apply(Restarted(now=world.now))) == ["RoundAbandoned"]


class TestRun:
    def test_counts_trains_evaluates_and_finishes(self):
        world = plain(total=2)
        while world.state.ending is None:
            world.tick(0, 1)
            world.upload(0)
            world.upload(1)
            world.sum()
        assert [change.kind for change in world.published] == [
            "count",
            "train",
            "train",
            "evaluate",
        ]
        world.check_end()

    def test_stop_waits_for_the_round_in_progress(self):
        world = plain()
        world.tick(0, 1)
        world.apply(StopRequested(now=world.now, at_once=False))
        assert world.state.ending is None
        world.upload(0)
        world.upload(1)
        assert kinds(world.sum())[-2:] == ["RoundPublished", "RunFinished"]

    def test_stop_at_once_abandons(self):
        world = plain()
        world.tick(0, 1)
        changes = world.apply(StopRequested(now=world.now, at_once=True))
        assert kinds(changes) == ["StopNoted", "RoundAbandoned", "RunFinished"]

    def test_who_is_behind_is_told_to_catch_up(self):
        world = plain()
        world.tick(0, 1)
        world.upload(0)
        world.upload(1)
        world.sum()
        task = task_for(world.state, client(0), RoundId(0), world.now)
        assert task is not None and isinstance(task.task, Wait) and task.published_round == 1

    def test_who_knows_more_waits(self):
        """The client sees which of the two went back; it is told to wait, not to forget."""
        world = plain()
        world.tick(0, 1)
        task = task_for(world.state, client(0), RoundId(2), world.now)
        assert task is not None and isinstance(task.task, Wait) and task.published_round == 0


class TestModels:
    @pytest.mark.parametrize("changes", [{"key_list": b"x" * 32}, {"base_state": b"x" * 32}])
    def test_updates_of_other_terms_are_refused(self, changes):
        world = reported()
        world.tick(*range(4))
        found = header(2, client(0), **(terms_of(world.state) | changes))
        with pytest.raises(ProtocolError):
            world.apply(Uploaded(now=world.now, header=found))

    def test_the_first_round_goes_on_with_the_largest_group(self):
        """No client said yet from which model; whoever reads a list of several would refuse it."""
        for liar in range(4):
            world = encrypted()
            world.tick(*range(4))
            for number in range(3):
                changes = {"base_state": b"x" * 32} if number == liar else {}
                assert kinds(world.upload(number, **changes)) == ["UpdateCounted"]
            changes = {"base_state": b"x" * 32} if liar == 3 else {}
            _, ended = world.upload(3, **changes)
            assert isinstance(ended, CollectingEnded)
            assert (ended.counted, ended.left_out) == (3, {client(liar)})
            assert world.state.current is not None
            assert set(world.state.current.accepted) == {client(n) for n in range(4) if n != liar}
            with pytest.raises(RoundClosed):
                world.upload(liar, "again")

    def test_the_first_round_of_an_epoch_knows_no_model_either(self):
        world = reported()
        assert world.state.base_state is not None
        newer = replace(world.state.rules, epoch=2)
        world.apply(EpochInstalled(now=world.now, rules=newer, roster=world.state.roster))
        assert world.state.base_state is None
        world.tick(*range(4))
        for number in range(3):
            world.upload(number, base_state=b"y" * 32)
        ended = world.upload(3, base_state=b"x" * 32)[-1]
        assert isinstance(ended, CollectingEnded) and ended.left_out == {client(3)}

    def test_too_few_of_one_model_abandon(self):
        world = encrypted()
        world.tick(*range(4))
        for number in range(3):
            world.upload(number, base_state=bytes([number % 2]) * 32)
        abandoned = world.upload(3, base_state=bytes([1]) * 32)[-1]
        assert isinstance(abandoned, RoundAbandoned)
        assert abandoned.reason == (
            "2 of the required 3 updates arrived in time, and 2 more start from another model"
        )

    def test_others_of_one_model_are_waited_for(self):
        """Three updates would do, were they of one model: five clients were asked."""
        world = encrypted(5, clients_per_round=3, over_provision=1.5)
        world.tick(*range(5))
        round_ = world.state.current
        assert round_ is not None and len(round_.asked) == 5
        world.upload(0, base_state=b"x" * 32)
        for number in (1, 2):
            assert kinds(world.upload(number)) == ["UpdateCounted"]
        ended = world.upload(3)[-1]
        assert isinstance(ended, CollectingEnded) and ended.left_out == {client(0)}
