"""Which users and rows a client's round trains."""

import hmac
from dataclasses import replace

import numpy as np
import pytest
from world.fake_authority import AuthorityWorld
from world.fake_federation import World
from world.fake_link import make_snapshot
from world.fake_parties import N_ITEMS

from fedrec.identity.sealing import keyed_tag
from fedrec.ids import RoundId, UserId, canonical
from fedrec.plan.layout import METRICS_SLICE, Layout
from fedrec.wire.messages import UNSAID, Finished
from fedrec_client.round.participation import select_users, selection_secret
from fedrec_client.state.private_store import PrivateStore

LEAST = 3
FEW = {"federation": {"name": "films", "seed": 7, "minimum_item_users": LEAST}}
HOLDERS = np.array([9, 0, 3, 1, 0, 4, 2, 0, 0, 12, 3, 0])
"""What the three puppets count together; items 0, 2, 5, 9 and 10 have enough holders."""
ACTIVE = [0, 2, 5, 9, 10]


@pytest.fixture(params=["bfv", "none"])
def world(request, tmp_path):
    return World(tmp_path, protection=request.param, **FEW)


def count(world):
    """Publish a count round of known counts, in which only puppets took part."""
    round_ = world.open(1, "count")
    for number, puppet in enumerate(world.puppets):
        vector = np.zeros(Layout.counting(world.plan, N_ITEMS).length, dtype=np.int64)
        vector[:N_ITEMS] = HOLDERS // 3 + (number < HOLDERS % 3)
        world.put_vector(round_, puppet, vector)
    world.publish(round_)
    return round_


def named(world):
    """Return the digest of the active rows, as members of an encrypted federation name it."""
    content = canonical("fedrec active rows v1", N_ITEMS, np.array(ACTIVE, dtype="<i8").tobytes())
    known = world.membership()
    stated = canonical("fedrec rows v1", "films", world.run, known.epoch, content)
    return keyed_tag(known.secrets.group_key, "fedrec rows v1", stated)


@pytest.mark.slow
def test_an_update_after_the_count_covers_the_active_rows_and_says_so(world):
    count(world)
    world.ask_to_train(2)
    world.app().run()
    ((header, payload),) = world.link.uploads
    assert header.n_rows == 256
    if world.protection.needs_reveal:
        assert header.rows_digest == named(world)
    layout = Layout.of(world.plan, 256)
    assert len(payload) == world.largest.over(layout.vector_spec).chosen.message_bytes
    assert header.rows_digest == world.stated_rows(2).digest != UNSAID


@pytest.mark.slow
def test_the_count_rounds_report_names_the_list(tmp_path):
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    world.app().run()
    (report,) = world.link.reports
    assert (report.n_rows, report.rows_digest) == (256, named(world))


@pytest.mark.slow
def test_the_count_rounds_statement_names_the_list(tmp_path):
    world = AuthorityWorld(tmp_path, protection="bfv", **FEW)
    statement = count(world).published.statement  # type: ignore[union-attr]
    assert (statement.n_rows, statement.rows_digest) == (256, named(world))


@pytest.mark.slow
def test_a_restart_between_the_count_and_the_training_changes_nothing(world):
    count(world)
    world.app().run()
    assert world.link.uploads == []
    world.ask_to_train(2)
    world.app().run()
    ((header, _),) = world.link.uploads
    assert (header.n_rows, header.base_round) == (256, 1)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"n_rows": 512}, {"rows_digest": b"x" * 32}])
def test_a_statement_about_other_rows_is_not_followed(tmp_path, changes):
    world = AuthorityWorld(tmp_path, protection="bfv", **FEW)
    round_ = count(world)
    assert round_.published is not None and round_.published.statement is not None
    changed = replace(round_.published.statement, **changes)
    signed = world.membership(world.revealer).sign_statement(changed)
    round_.published = replace(round_.published, statement=signed)
    world.ask_to_train(2)
    with pytest.raises(Exception, match=next(iter(changes))):
        world.app().run()
    assert "published_round_refused" in world.audit()
    assert world.link.uploads == []


def next_round(world):
    """Return the round after the count, to which all puppets contribute."""
    count(world)
    return world.honest_round(2)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"n_rows": 12}, {"rows_digest": b"x" * 32}])
def test_a_round_in_which_a_client_covers_other_rows_is_not_opened(tmp_path, changes):
    world = AuthorityWorld(tmp_path, protection="bfv", **FEW)
    round_ = next_round(world)
    puppet = world.puppets[0]
    header, payload = round_.contributions[puppet.client_id]
    world.put(round_, puppet, payload, nonce=header.nonce, **changes)
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert "item rows" in world.refusals()


@pytest.mark.slow
def test_an_update_of_another_length_is_not_opened(tmp_path):
    world = AuthorityWorld(tmp_path, protection="bfv", **FEW)
    round_ = next_round(world)
    puppet = world.puppets[0]
    header, payload = round_.contributions[puppet.client_id]
    honest = world.reveal(round_)
    world.put(round_, puppet, payload + b"x", nonce=header.nonce)
    world.run_revealer(lambda: replace(honest, contributions=round_.headers))
    assert world.link.reveals == []
    assert f"announces {len(payload) + 1} bytes" in world.refusals()


@pytest.mark.slow
def test_a_sum_that_is_not_zero_behind_the_active_rows_is_refused(tmp_path):
    world = AuthorityWorld(tmp_path, protection="bfv", **FEW)
    count(world)
    round_ = world.open(2)
    for seed, puppet in enumerate(world.puppets):
        vector = world.vector(seed, round_)
        # The last row's count; only five of 256 rows are items'.
        vector[METRICS_SLICE.start - 1] = 1
        world.put_vector(round_, puppet, vector)
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert "counts of padding row 255 is 3, but the allowed range is 0 to 0" in world.refusals()


@pytest.mark.slow
def test_a_late_joiner_learns_the_rows_from_a_snapshot(tmp_path):
    world = World(tmp_path, protection="bfv", **FEW)
    count(world)
    round_ = world.open(2)
    world.contribute(round_)
    world.publish(round_)
    world.link.offered = make_snapshot(world, 2)
    world.ask_to_train(3)
    world.app().run()
    assert "snapshot_taken" in world.event_names()
    ((header, _),) = world.link.uploads
    assert (header.n_rows, header.rows_digest) == (256, named(world))


@pytest.mark.slow
def test_a_plan_that_no_client_can_train_ends_with_the_coordinators_reason(tmp_path):
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


USERS = [UserId(f"user {n}") for n in range(4000)]


def test_one_user_by_hand():
    secret = b"s" * 32
    message = canonical("fedrec coin v1", "run", 3) + canonical("user 0")
    draw = int.from_bytes(hmac.digest(secret, message, "sha256")[:8], "big") / 2**64
    for fraction in (draw - 1e-6, draw + 1e-6):
        (chosen,) = select_users(secret, "run", RoundId(3), USERS[:1], fraction)
        assert chosen == (draw < fraction)


def test_the_secret_outlives_the_process(tmp_path):
    with PrivateStore(tmp_path) as store:
        secret = selection_secret(store)
        assert selection_secret(store) == secret and len(secret) == 32
    with PrivateStore(tmp_path) as store:
        assert selection_secret(store) == secret
    with PrivateStore(tmp_path / "other") as other:
        assert selection_secret(other) != secret


def test_it_is_fair_and_depends_on_everything():
    drawn = select_users(b"a" * 32, "run", RoundId(1), USERS, 0.3)
    assert abs(drawn.mean() - 0.3) < 0.03
    assert (drawn == select_users(b"a" * 32, "run", RoundId(1), USERS, 0.3)).all()
    others = [
        select_users(b"b" * 32, "run", RoundId(1), USERS, 0.3),
        select_users(b"a" * 32, "other", RoundId(1), USERS, 0.3),
        select_users(b"a" * 32, "run", RoundId(2), USERS, 0.3),
    ]
    for other in others:
        assert abs((drawn & other).mean() - 0.09) < 0.02


def test_every_client_takes_part_at_one():
    assert select_users(b"", "run", RoundId(1), USERS, 1.0).all()
    assert select_users(b"a" * 32, "run", RoundId(1), [], 0.5).dtype == np.bool_
