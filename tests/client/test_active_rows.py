"""After the count a client's vectors cover the active rows, and so must everybody's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.fake_federation import N_ITEMS, FakeRound, World

from fedrec.identity.sealing import keyed_tag
from fedrec.ids import RoundId, canonical
from fedrec.training.layout import METRICS_SLICE, Layout
from fedrec.wire.messages import UNSAID, Finished, Snapshot

LEAST = 3
FEW = {"federation": {"name": "films", "seed": 7, "minimum_item_users": LEAST}}
HOLDERS = np.array([9, 0, 3, 1, 0, 4, 2, 0, 0, 12, 3, 0])
"""What the three puppets count together; items 0, 2, 5, 9 and 10 have enough holders."""
ACTIVE = [0, 2, 5, 9, 10]


@pytest.fixture(params=["bfv", "none"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, protection=request.param, **FEW)


def count(world: World) -> FakeRound:
    """Publish a count round of known counts, in which only puppets took part."""
    round_ = world.open(1, "count")
    for number, puppet in enumerate(world.puppets):
        vector = np.zeros(Layout.counting(world.plan, N_ITEMS).length, dtype=np.int64)
        vector[:N_ITEMS] = HOLDERS // 3 + (number < HOLDERS % 3)
        payload = world.round_vector(round_, puppet).member.protect(vector)
        world.put(round_, puppet, payload)
    world.publish(round_)
    return round_


def named(world: World) -> bytes:
    """Return the digest of the active rows, as members of an encrypted federation name it."""
    content = canonical("fedrec active rows v1", N_ITEMS, np.array(ACTIVE, dtype="<i8").tobytes())
    known = world.membership()
    stated = canonical("fedrec rows v1", "films", world.run, known.epoch, content)
    return keyed_tag(known.secrets.group_key, "fedrec rows v1", stated)


def test_an_update_after_the_count_covers_the_active_rows_and_says_so(world: World) -> None:
    count(world)
    world.ask_to_train(2)
    world.app().run()
    ((header, payload),) = world.link.uploads
    assert header.n_rows == 256
    if world.protection.needs_reveal:
        assert header.rows_digest == named(world)
    layout = Layout.of(world.plan, 256)
    assert len(payload) == world.largest.plan_over(layout.vector_spec).message_bytes
    assert header.rows_digest == world.stated_rows(2).digest != UNSAID


def test_the_count_rounds_statement_names_the_list(tmp_path: Path) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    for statement in count(world).published.statements:  # type: ignore[union-attr]
        assert (statement.n_rows, statement.rows_digest) == (256, named(world))


def test_a_restart_between_the_count_and_the_training_changes_nothing(world: World) -> None:
    count(world)
    world.app().run()
    assert world.link.uploads == []
    world.ask_to_train(2)
    world.app().run()
    ((header, _),) = world.link.uploads
    assert (header.n_rows, header.base_round) == (256, 1)


@pytest.mark.parametrize("changes", [{"n_rows": 512}, {"rows_digest": b"x" * 32}])
def test_a_statement_about_other_rows_is_not_followed(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    round_ = count(world)
    assert round_.published is not None
    words = []
    for statement in round_.published.statements:
        (author,) = (p for p in world.puppets if p.client_id == statement.client_id)
        changed = replace(statement, **changes)
        words.append(world.membership(author).sign_statement(changed))
    round_.published = replace(round_.published, statements=tuple(words))
    world.ask_to_train(2)
    with pytest.raises(Exception, match=next(iter(changes))):
        world.app().run()
    assert "published_round_refused" in world.audit()
    assert world.link.uploads == []


@pytest.mark.parametrize("changes", [{"n_rows": 12}, {"rows_digest": b"x" * 32}])
def test_a_round_in_which_somebody_covers_other_rows_is_not_opened(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    number = world.drawn_number(after=1)
    round_ = world.open(number)
    world.contribute(round_)
    puppet = world.puppets[0]
    _, payload = round_.contributions[puppet.client_id]
    world.put(round_, puppet, payload, **changes)
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run()
    assert world.link.reveals == []
    assert "item rows" in world.audit()


def test_an_update_of_another_length_is_not_opened(tmp_path: Path) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    number = world.drawn_number(after=1)
    round_ = world.open(number)
    world.contribute(round_)
    whole = world.membership(world.puppets[0]).vector_of("count", N_ITEMS)
    vector = np.zeros(whole.layout.length, dtype=np.int64)
    world.put(round_, world.puppets[0], whole.member.protect(vector))
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run() if whole.message_bytes != world.round_vector(round_).message_bytes else None
    assert world.link.reveals == []


def test_a_sum_that_is_not_zero_behind_the_active_rows_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    number = world.drawn_number(after=1)
    round_ = world.open(number)
    for seed, puppet in enumerate(world.puppets):
        vector = world.vector(seed, round_)
        # The last row's count; only five of 256 rows are items'.
        vector[METRICS_SLICE.start - 1] = 1
        world.put(round_, puppet, world.round_vector(round_, puppet).member.protect(vector))
    world.link.script.append(lambda: world.reveal(round_))
    world.app().run()
    assert world.link.reveals == []
    assert "counts of row 255, padding, is 3, allowed is 0 to 0" in world.audit()


def test_a_late_joiner_learns_the_rows_from_a_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    round_ = world.open(2)
    world.contribute(round_)
    published = world.publish(round_)
    known = world.membership(world.puppets[0])
    blob = known.seal_of(RoundId(2), "train").seal_snapshot(world.stored(2))
    world.link.offered = Snapshot(
        round=RoundId(2), epoch=1, statements=published.statements, sealed=True, blob=blob
    )
    world.ask_to_train(3)
    world.app().run()
    assert "snapshot_taken" in world.event_names()
    ((header, _),) = world.link.uploads
    assert (header.n_rows, header.rows_digest) == (256, named(world))


def test_what_nobody_can_train_ends_with_the_coordinators_reason(tmp_path: Path) -> None:
    """A client follows such a count, too: the coordinator ends the run and says why."""
    world = World(
        tmp_path,
        protection="none",
        federation={"name": "films", "seed": 7, "minimum_item_users": 99},
    )
    count(world)
    world.link.script.append(lambda: Finished(reason="no item is held by 99 users", failed=True))
    outcome = world.app().run()
    assert (outcome.failed, outcome.version) == (True, 1)
