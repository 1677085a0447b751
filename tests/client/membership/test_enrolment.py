"""First contact with a coordinator that may lie, and the ties between a folder and a run."""

from dataclasses import replace
from typing import Any

import pytest
from world.fake_authority import AuthorityWorld
from world.fake_federation import World

from fedrec.algorithms import FedMFSettings
from fedrec.data import Catalogue
from fedrec.errors import (
    BadSignature,
    CatalogueMismatch,
    DataError,
    KeysError,
    NotInRoster,
    PlanMismatch,
    RefusedError,
    SettingsError,
    VersionMismatch,
)
from fedrec.follower.enrolment import enrol
from fedrec.identity.authority import Authority
from fedrec.identity.public import read_authority_key
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec.wire.messages import Wait
from fedrec_client.state.private_store import PrivateStore

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def join(world, info=None, **changes):
    if info is not None:
        world.link.federation = lambda client_id: info  # type: ignore[method-assign]
    options: dict[str, Any] = {
        "authority_key": world.authority.public_key,
        "catalogue_cache": world.folder / "fetched.csv",
        "expected": world.plan,
    }
    return enrol(world.link, world.identity, **{**options, **changes})


def test_an_honest_federation_is_joined(world):
    found = join(world)
    assert (found.run, found.epoch, found.is_encrypted) == ("run-1", 1, True)
    assert found.minimum_summands == 3
    assert found.secrets.protection_secret


def test_a_plan_that_exposes_users_is_joined_on_this_clients_word_alone(tmp_path):
    world = World(
        tmp_path,
        protection="none",
        algorithm={"name": "ease"},
        update={"structure": "dense"},
    )
    with pytest.raises(RefusedError, match="the coordinator would read which pairs") as caught:
        join(world)
    assert "--accept-exposure" in caught.value.remedy
    assert world.link.calls == ["federation"], "nothing was sent"
    assert join(world, accept_exposure=True).plan.algorithm.name == "ease"


def test_the_catalogue_is_fetched_once(world):
    join(world)
    join(world)
    assert world.link.calls.count("catalogue") == 1


def test_a_local_catalogue_is_compared(world):
    path = world.folder / "own.csv"
    world.catalogue.save(path)
    join(world, catalogue_file=path)
    assert "catalogue" not in world.link.calls
    Catalogue.of(["other"]).save(path)
    with pytest.raises(CatalogueMismatch, match=r"own\.csv"):
        join(world, catalogue_file=path)


def test_another_catalogue_than_announced(world):
    Catalogue.of(["other"]).save(world.folder / "catalogue.csv")
    with pytest.raises(CatalogueMismatch, match="announced"):
        join(world)


def test_bytes_that_are_no_catalogue(world):
    (world.folder / "catalogue.csv").write_bytes(b"\x00\xff")
    with pytest.raises(DataError):
        join(world)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"protocol_version": "1.0"}, VersionMismatch, "1.0"),
        ({"federation": "books"}, PlanMismatch, "books"),
        ({"plan_json": b"{"}, PlanMismatch, "cannot be read"),
        ({"plan_json": plan_to_json(Plan())}, PlanMismatch, "movies"),
        ({"n_items": 5}, CatalogueMismatch, "5"),
        ({"epoch": 2}, KeysError, "epoch 1 instead of 2"),
        ({"server_context": b"\x00" * 56}, KeysError, "context"),
        ({"wrapped_secrets": b""}, KeysError, "no secrets"),
        ({"wrapped_secrets": b"\x00" * 99}, KeysError, "cannot unwrap"),
        ({"roster_json": b"{}"}, KeysError, "roster"),
    ],
)
def test_a_lie(world, change, error, words):
    with pytest.raises(error, match=words):
        join(world, world.info(**change))


def test_a_roster_by_another_authority(world):
    world.authority = Authority.create()
    with pytest.raises(BadSignature, match="trusts"):
        join(world, authority_key=Authority.create().public_key)


def test_a_client_on_no_list(world):
    world.epoch = world.make_epoch(members=[member.public for member in world.puppets])
    with pytest.raises(NotInRoster):
        join(world)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"federation": "books"}, "books"),
        ({"protection": "none"}, "none"),
        ({"protection_fingerprint": "ab" * 32}, "parameters"),
    ],
)
def test_an_epoch_for_something_else(world, terms, words):
    world.epoch = world.make_epoch(**terms)
    with pytest.raises(KeysError, match=words):
        join(world)


def test_a_plan_with_other_parameters_than_the_authority_signed(world):
    """More users than the roster's parameters were made for would overflow the sums."""
    plan = world.plan.model_copy(
        update={
            "federation": world.plan.federation.model_copy(update={"maximum_users": 2**26}),
        }
    )
    with pytest.raises(KeysError, match="parameters"):
        join(world, world.info(plan_json=plan_to_json(plan)), expected=plan)


def test_a_plan_that_differs_from_the_local_settings(world):
    expected = Plan(algorithm=FedMFSettings(dim=64, learning_rate=0.25))
    with pytest.raises(PlanMismatch) as caught:
        join(world, expected=expected)
    assert "algorithm.dim is 4 in the federation, but this" in caught.value.message
    assert "settings say 64" in caught.value.message
    assert "algorithm.learning_rate" in caught.value.message


@pytest.mark.parametrize(
    ("protection", "plan", "words", "fix"),
    [
        ("none", {}, 'protection.name is "none"', 'protection.name = "none"'),
        (
            "bfv",
            {"federation": {"name": "films", "minimum_item_users": 9}},
            "minimum_item_users is 9 in the federation, but this client's settings say 10 or more",
            "federation.minimum_item_users = 9",
        ),
        (
            "none",
            {"rounds": {"minimum_clients": 2}},
            "minimum_clients is 2 in the federation, but this client's settings say 3 or more",
            "rounds.minimum_clients = 2",
        ),
        ("bfv", {"rounds": {"user_fraction": 0.5}}, "1.0 (the default)", "user_fraction = 0.5"),
        ("bfv", {"evaluation": {"protocol": "paper"}}, "leak", 'protocol = "paper"'),
    ],
)
def test_a_silent_settings_file_means_the_safe_defaults(tmp_path, protection, plan, words, fix):
    """A coordinator cannot weaken what is not written down."""
    world = World(tmp_path, protection=protection, **{"federation": {"name": "films"}, **plan})
    silent = Settings(data=world.settings().data, client=world.settings().client)
    with pytest.raises(PlanMismatch) as caught:
        world.app(settings=silent).run()
    assert words in caught.value.message
    assert fix in caught.value.remedy
    assert world.link.calls == ["federation", "close"]
    assert world.app().run().version == 0, "a file that agrees"


def test_a_silent_settings_file_joins_a_stricter_federation(tmp_path):
    world = AuthorityWorld(
        tmp_path,
        federation={"name": "films", "minimum_item_users": 20, "maximum_users": 64},
        rounds={"minimum_clients": 4, "minimum_summands": 4},
    )
    assert join(world, expected=Settings()).minimum_summands == 4


def test_a_file_that_is_no_authority_key(tmp_path):
    with pytest.raises(KeysError, match="does not exist"):
        read_authority_key(tmp_path / "none")
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(KeysError, match="kind"):
        read_authority_key(tmp_path / "bad")


# What a state folder is tied to.


def test_another_run_needs_another_folder_or_a_word(world):
    world.play(1)
    world.link.script.append(Wait)
    world.app().run()
    world.run = "run-2"
    world.rounds.clear()
    world.published_round = type(world.published_round)(0)
    with pytest.raises(PlanMismatch, match=r"run-1.*--new-run"):
        world.app().run()
    assert world.app().run(new_run=True).version == 0
    world.run = "run-1"
    with pytest.raises(PlanMismatch, match="left it") as refused:
        world.app().run(new_run=True)
    assert "earlier counts, whose difference" in refused.value.remedy


def test_a_new_run_is_agreed_to_once(world):
    """Removed from the new run, the client does not apply again, nor leave it for a third one."""
    world.play(1)
    world.link.script.append(Wait)
    world.app().run()
    world.run = "run-2"
    world.rounds.clear()
    world.published_round = type(world.published_round)(0)
    listed = world.epoch
    present = world.membership().roster.epoch

    def remove():
        world.epoch = world.make_epoch(
            epoch=present + 1, members=[member.public for member in world.puppets]
        )
        return Wait()

    world.link.epoch_of_tasks = lambda: world.epoch.roster.epoch
    world.link.script.append(remove)
    world.link.calls.clear()
    app = world.app()
    with pytest.raises(NotInRoster):
        app.run(new_run=True)
    assert "apply" not in world.link.calls
    assert not app.wants_new_run
    assert PrivateStore(world.state, read_only=True).state.pin.run == "run-2"

    def restart():
        world.run, world.epoch = "run-3", world.make_epoch(epoch=present + 2)
        return Wait()

    world.epoch = listed
    world.link.script.append(restart)
    with pytest.raises(PlanMismatch, match="--new-run"):
        world.app().run(new_run=True)


def test_other_users_need_another_folder(world):
    world.app().run()
    world.write_data(("dave@example.org",))
    with pytest.raises(PlanMismatch, match="users"):
        world.app().run()


def test_another_plan_in_the_same_run(world):
    world.app().run()
    rounds = world.plan.rounds.model_copy(update={"total": 7})
    world.plan = world.plan.model_copy(update={"rounds": rounds})
    with pytest.raises(PlanMismatch, match="plan_json"):
        world.app().run()


def test_a_coordinator_of_an_older_epoch_is_waited_for(world):
    """Where it offers its epoch to a member of the next, and where it does not know that member."""
    newest = world.epoch = world.make_epoch(epoch=2)
    world.app().run()
    world.epoch, asked = world.make_epoch(epoch=1), []

    def before(name):
        if name not in ("federation", "next_task"):
            return
        asked.append(name)
        if len(asked) in (2, 3, 5):
            error = NotInRoster("Not in the federation's roster.")
            error.epoch = 1
            raise error
        world.epoch = newest if len(asked) > 3 else world.epoch

    world.link.before = before
    world.events.clear()
    assert world.app().run().reason == "done"
    # Offered, refused twice, joined, refused in the middle of its work, and joined once more.
    assert asked == ["federation"] * 4 + ["next_task", "federation", "next_task"]
    seen = [event.detail for event in world.events if event.name == "coordinator_went_back"]
    assert seen == [
        "The coordinator went back from key epoch 2 to 1. This client waits and keeps what it has."
    ]


@pytest.mark.parametrize("epoch", [0, 2, 3])
def test_a_member_that_was_removed_ends(world, epoch):
    """The refusal names this client's epoch or a later one, or comes from an older coordinator."""
    world.epoch = world.make_epoch(epoch=2)

    def refuse():
        error = NotInRoster("Not in the federation's roster.")
        error.epoch = epoch
        raise error

    world.link.script.append(refuse)
    with pytest.raises(NotInRoster):
        world.app().run()


def test_new_keys_are_fetched_in_the_middle_of_a_run(world):
    round_ = world.open(1)
    world.contribute(round_)
    task = replace(world.train(round_), epoch=2)

    def renew():
        world.epoch = world.make_epoch(epoch=2)
        return task

    world.link.script += [renew, lambda: task]
    world.app().run()
    assert world.link.calls.count("federation") == 2
    assert [header.epoch for header, _ in world.link.uploads] == [2]
    assert PrivateStore(world.state, read_only=True).state.epoch == 2


def test_a_client_without_data(world):
    settings = world.settings().model_copy(
        update={"data": world.settings().data.model_copy(update={"path": None})}
    )
    with pytest.raises(SettingsError, match=r"data\.path"):
        world.app(settings=settings).run()


def test_a_catalogue_beyond_what_the_algorithm_trains_is_counted_all_the_same(
    tmp_path, monkeypatch
):
    """The threshold for rows decides how many of its items are trained."""
    known = World(
        tmp_path, protection="none", algorithm={"name": "ease"}, update={"structure": "dense"}
    ).membership()
    n_items = len(known.catalogue)
    monkeypatch.setattr("fedrec.algorithms.ease._MOST_ITEMS", n_items - 1)
    assert known.vector_of("count", n_items).layout.n_rows == n_items
    with pytest.raises(SettingsError, match="rows travel"):
        known.vector_of("train", n_items)
