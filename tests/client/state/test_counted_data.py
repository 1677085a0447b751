"""What a client's state says of its data and of its privacy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from structlog.testing import capture_logs
from world.fake_federation import World
from world.plans import plan_of

from fedrec.data.splits import NO_ITEM, UserSplit
from fedrec.errors import StorageError
from fedrec.follower.membership import Membership
from fedrec.follower.stored_state import RunPin
from fedrec.ids import ItemId, RoundId, UserId
from fedrec.model.state import SharedState
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.planned_noise import mechanism_of
from fedrec.privacy import Spent
from fedrec.training.learner import Learner
from fedrec_client.round.local_model import LocalModel
from fedrec_client.state.counted_data import CountedData
from fedrec_client.state.privacy_ledger import PrivacyLedger
from fedrec_client.state.private_store import PrivateStore

N_ITEMS = 24
ITEMS = tuple(ItemId(f"item {row}") for row in range(N_ITEMS))
EXACT = ("ease", "fedals", "sketch")


def users_of(histories):
    nothing = np.full(len(histories), NO_ITEM, dtype=np.int64)
    items = [sorted(histories[user]) for user in sorted(histories)]
    return UserSplit(
        user_ids=tuple(UserId(user) for user in sorted(histories)),
        train_indptr=np.cumsum([0, *map(len, items)]).astype(np.int64),
        train_items=np.concatenate(items).astype(np.int64),
        validation_items=nothing,
        test_items=nothing,
    )


def member_with(items):
    """Return all of a membership that counting looks at."""
    return cast(Membership, SimpleNamespace(catalogue=SimpleNamespace(item_ids=items)))


def people(first, last, shift=0):
    """Return users with four items each, no two of them alike for 24 users in a row."""
    return {
        f"user {n:02d}": [(n + shift + step) % N_ITEMS for step in (0, 1, 3, 7)]
        for n in range(first, last)
    }


def counts_of(histories):
    return np.bincount(np.concatenate(list(histories.values())), minlength=N_ITEMS).tolist()


@dataclass
class Client:
    """A client that is started anew for everything it sends.

    Attributes:
        shared: the model that its rounds start from; counted by whoever else is there.
    """

    folder: Path
    name: str = "fedmf"
    run: str = "first"
    items: tuple[ItemId, ...] = ITEMS
    least: int = 10
    floor: int = 1
    shared: dict[str, SharedState] = field(default_factory=dict)

    def sends(self, kind, histories):
        """Return what a round's vector holds behind its metrics, padding included."""
        users, learner = users_of(histories), self.learner()
        with PrivateStore(self.folder) as store:
            pin = RunPin(
                federation="f", run=self.run, plan_json=plan_to_json(learner.server.plan).decode(),
                catalogue_fingerprint="c", users=self.run,
            )  # fmt: skip
            store.bind(pin, 1, new_run=True)
            model = LocalModel(member_with(self.items), learner, users, store, floor=self.floor)
            model._shared = (
                self.start(learner) if kind == "train" else learner.server.initial_shared()
            )
            made = model.contribute(kind, None)  # type: ignore[arg-type]
            assert {name: len(rows) for name, rows in made.private.tensors.items()} == {
                name: len(users) for name in made.private.tensors
            }
        layout = learner.server.travelling.layout(kind, model.shared)  # type: ignore[arg-type]
        return np.concatenate([made.vector[layout.change_slice], made.vector[layout.count_slice]])

    def counts(self, histories):
        vector = self.sends("count", histories)
        assert not vector[: -len(self.items)].any()
        return vector[-len(self.items) :].tolist()

    def learner(self):
        own: dict[str, Any] = {} if self.name == "ease" else {"dim": 4}
        plan = plan_of(
            federation={
                "seed": 5, "maximum_users": 256, "minimum_item_users": 1,
                "minimum_new_users": self.least,
            },
            algorithm={"name": self.name, **own},
            update={"structure": "dense"},
            rounds={"total": 2 if self.name == "sketch" else 1},
        )  # fmt: skip
        return Learner(plan, len(self.items), device="cpu")

    def start(self, learner):
        """Return the version after a count of many others."""
        if self.run not in self.shared:
            many = np.full(len(self.items), 50, dtype=np.int64)
            self.shared[self.run] = learner.server.apart(
                learner.server.initial_shared().counted(many)
            )
        return self.shared[self.run]


@pytest.mark.parametrize("name", [*EXACT, "fedmf"])
def test_count_again_one_new_user(tmp_path, name):
    client = Client(tmp_path, name)
    before = people(0, 14)
    assert client.counts(before) == counts_of(before)
    trained = client.sends("train", before)
    client.run = "second"
    # One came, one has a longer history.
    after = {**before, **people(14, 15)}
    after["user 03"] = [*after["user 03"], 20]
    with capture_logs() as seen:
        assert client.counts(after) == counts_of(before)
    (line,) = [entry for entry in seen if entry["event"] == "former counts apply"]
    assert (line["users_that_differ"], line["needed"]) == (2, 10)
    # What is drawn anew in every round is of today's users.
    assert np.array_equal(client.sends("train", after), trained) == (name in EXACT)


@pytest.mark.parametrize(("last", "counted"), [(23, False), (24, True)])
def test_ten_new_users_are_counted(tmp_path, last, counted):
    client = Client(tmp_path)
    before, after = people(0, 14), people(0, last)
    client.counts(before)
    client.run = "second"
    assert client.counts(after) == counts_of(after if counted else before)
    assert counts_of(after) != counts_of(before)


def test_what_changed_adds_up_since_the_last_count_and_not_since_the_last_run(tmp_path):
    client = Client(tmp_path)
    client.counts(people(0, 14))
    for last in (17, 20, 23):
        client.run = f"with {last}"
        assert client.counts(people(0, last)) == counts_of(people(0, 14))
    client.run = "with 24"
    assert client.counts(people(0, 24)) == counts_of(people(0, 24))
    # From here on it is the new count that stands.
    client.run = "without"
    assert client.counts(people(0, 14 + 1)) == counts_of(people(0, 24))


def test_who_left_is_counted_as_one_who_differs(tmp_path):
    client = Client(tmp_path)
    client.counts(people(0, 24))
    client.run = "second"
    assert client.counts(people(1, 24)) == counts_of(people(0, 24))
    client.run = "third"
    assert client.counts(people(10, 24)) == counts_of(people(10, 24))


def test_few_users_are_counted_once(tmp_path):
    client = Client(tmp_path)
    before = people(0, 9)
    client.counts(before)
    client.run = "second"
    # All nine are others: eighteen differ.
    assert client.counts(people(30, 39)) == counts_of(before)
    client.run = "third"
    assert client.counts(people(30, 40)) == counts_of(people(30, 40))


@pytest.mark.parametrize("name", ["fedals", "fedmf"])
def test_what_a_run_was_told_stays_to_its_end(tmp_path, name):
    """Its training is divided by that count; a round that was given up is repeated."""
    client = Client(tmp_path, name)
    before, after = people(0, 14), people(0, 40)
    client.counts(before)
    trained = client.sends("train", before)
    assert client.counts(after) == counts_of(before)
    if name == "fedals":
        assert np.array_equal(client.sends("train", after), trained)
    client.run = "second"
    assert client.counts(after) == counts_of(after)


def test_a_catalogue_that_grew_moves_rows_and_no_counts(tmp_path):
    client = Client(tmp_path, "ease")
    before = people(0, 14)
    client.counts(before)
    client.run = "second"
    # The item in row 2 is gone, all others stand in reverse order behind a new one.
    client.items = (ItemId("new"), *(item for item in reversed(ITEMS) if item != ITEMS[2]))
    row_of = {item: row for row, item in enumerate(client.items)}
    moved = {
        user: [row_of[ITEMS[row]] for row in rows if row != 2] for user, rows in before.items()
    }
    wanted = [0, *(n for row, n in reversed(list(enumerate(counts_of(before)))) if row != 2)]
    # Who held the item that is gone differs, and no other client: too few of them.
    assert 0 < sum(2 in rows for rows in before.values()) < 10
    assert client.counts(moved) == wanted
    assert np.array_equal(
        client.sends("train", moved | {"user 99": [0, 1]}), client.sends("train", moved)
    )


def test_after_counts_alone_what_more_is_wanted_fits_them(tmp_path):
    client = Client(tmp_path)
    before = people(0, 14)
    client.counts(before)
    client.run, client.name = "second", "ease"
    after = {**before, **people(14, 16)}
    after["user 03"] = [*after["user 03"], 20]
    client.counts(after)
    found = client.sends("train", after)
    elsewhere = Client(tmp_path / "elsewhere", "ease", run="second")
    unchanged = {user: rows for user, rows in before.items() if user != "user 03"}
    elsewhere.counts(unchanged)
    assert np.array_equal(found, elsewhere.sends("train", unchanged))


def test_under_noise_no_client_is_counted(tmp_path):
    client = Client(tmp_path)
    before = people(0, 14)
    learner = Learner(
        plan_of(
            federation={"maximum_users": 256, "minimum_item_users": 1},
            algorithm={"name": "fedmf", "dim": 4},
            privacy={"mechanism": "gaussian"},
        ),
        N_ITEMS,
        device="cpu",
    )
    with PrivateStore(client.folder) as store:
        pin = RunPin(
            federation="f", run="first", plan_json="", catalogue_fingerprint="c", users="u"
        )
        store.bind(pin, 1)
        model = LocalModel(member_with(ITEMS), learner, users_of(before), store)
        assert not model.contribute("count", None).vector.any()
        assert store.state.counted is None


@dataclass
class NoisyClient(Client):
    """The same under noise, which is left out, with counts of 50 users for each item."""

    name: str = "ease"

    def learner(self):
        plan = plan_of(
            federation={"seed": 5, "maximum_users": 256, "minimum_item_users": 1},
            algorithm={"name": "ease"},
            update={"structure": "dense"},
            rounds={"total": 3},
            privacy={"mechanism": "gaussian", "epsilon": 100.0, "expected_users": 1e4},
        )
        return Learner(plan, len(self.items), device="cpu")

    def start(self, learner):
        first = super().start(learner)
        counts = np.full(len(self.items), 50.0)
        return replace(first.with_tensors(pairs=counts), trained=1)


def test_a_history_is_frozen_at_the_first_part_of_a_release(tmp_path):
    client, before = NoisyClient(tmp_path), people(0, 14)
    trained = client.sends("train", before)
    assert trained.any()
    after = {**before, **people(14, 40)}
    after["user 03"] = [*after["user 03"], 20]
    del after["user 05"]
    # Within a run histories are frozen: whoever changed, came or went makes no difference.
    assert np.array_equal(client.sends("train", after), trained)
    client.run = "second"
    assert not np.array_equal(client.sends("train", after), trained)
    # One user differs, which makes former counts apply only to exact sums.
    client.run, changed = "third", dict(after)
    del changed["user 07"]
    assert not np.array_equal(client.sends("train", changed), client_of(tmp_path, after))


def client_of(folder, histories):
    return NoisyClient(folder / "elsewhere", run="third").sends("train", histories)


def test_it_is_kept_as_it_is_and_nothing_else_is_read():
    users = users_of(people(0, 3))
    for whole in (False, True):
        made = CountedData.of(users, ITEMS, run="first", whole=whole)
        raw = made.to_bytes()
        read = CountedData.from_bytes(raw)
        assert read.to_bytes() == raw and (read.users is not None) == whole
        assert (b"item 3" in raw, read.differing(made)) == (False, 0)
    with pytest.raises(StorageError, match="not the data of a count"):
        CountedData.from_bytes(b"something else")


def test_a_floor_of_a_run_never_falls_in_it(tmp_path):
    client, all_users = Client(tmp_path, "ease", floor=3), people(0, 14)
    floored = [count if count >= 3 else 0 for count in counts_of(all_users)]
    assert client.counts(all_users) == floored != counts_of(all_users)
    client.floor = 1
    assert client.counts(all_users) == floored
    client.floor = 4
    assert client.counts(all_users) == [count if count >= 4 else 0 for count in floored]
    client.run, client.floor = "second", 1
    assert client.counts(all_users) == counts_of(all_users)


USERS = tuple(map(UserId, ("ann", "bob", "cid")))


def mechanism(**privacy):
    found = mechanism_of(plan_of(privacy={"mechanism": "gaussian", **privacy}))
    assert found is not None
    return found


def after(ledger, by, run, *who, part=0):
    return ledger.charged(by, run, USERS, np.array(who), part)


def test_a_user_stops_at_the_cap():
    by, ledger = mechanism(rounds_per_user=2), PrivacyLedger()
    ledger = after(ledger, by, "first", True, False, True)
    assert ledger.affordable(by, "first", USERS, None, 0).tolist() == [True, True, True]
    ledger = after(ledger, by, "first", True, False, False)
    assert ledger.affordable(by, "first", USERS, None, 0).tolist() == [False, True, True]
    asked = np.array([True, False, True])
    assert ledger.affordable(by, "first", USERS, asked, 0).tolist() == [False, False, True]


def test_another_run_goes_on_counting():
    """The budget of two rounds was spent in the first run; the second one's cap is untouched."""
    by, ledger = mechanism(rounds_per_user=2), PrivacyLedger()
    for _ in range(2):
        ledger = after(ledger, by, "first", True, False, False)
    assert ledger.affordable(by, "second", USERS, None, 0).tolist() == [False, True, True]
    twice = mechanism(rounds_per_user=2, epsilon=16.0, noise_multiplier=4.0)
    assert ledger.affordable(twice, "second", USERS, None, 0).all()
    ledger = after(ledger, twice, "second", True, True, False)
    assert ledger.accounts[USERS[0]].spent == by.cost.times(2) + twice.cost
    assert ledger.accounts[USERS[0]].rounds == 1


def test_a_budget_below_the_cap_counts_as_well():
    """z = 4: by dp-accounting four rounds cost epsilon 1.993, five 2.258, whatever the cap says."""
    by = mechanism(rounds_per_user=9, noise_multiplier=4.0, epsilon=2.1)
    ledger = PrivacyLedger()
    for _ in range(4):
        assert ledger.affordable(by, "run", USERS, None, 0)[0]
        ledger = after(ledger, by, "run", True, False, False)
    assert not ledger.affordable(by, "run", USERS, None, 0)[0]


def one_release(**privacy):
    found = mechanism_of(
        plan_of(
            algorithm={"name": "ease"},
            update={"structure": "dense"},
            rounds={"total": 4},
            privacy={"mechanism": "gaussian", **privacy},
        )
    )
    assert found is not None and found.in_parts
    return found


def spent_of(ledger):
    return [ledger.accounts[user].spent for user in USERS if user in ledger.accounts]


def test_all_parts_of_a_release_are_paid_once():
    by, ledger = one_release(), PrivacyLedger()
    for part in range(4):
        assert ledger.affordable(by, "run", USERS, None, part).all()
        ledger = after(ledger, by, "run", True, True, True, part=part)
        assert spent_of(ledger) == [by.cost] * 3
    assert by.cost.epsilon(by.delta) == pytest.approx(8.0, rel=1e-3)


def test_a_part_that_is_drawn_again_is_paid_again():
    """The budget of 8 pays for one release; one of 16 for two releases, and not for three."""
    by, ledger = one_release(), PrivacyLedger()
    for part in (0, 1):
        ledger = after(ledger, by, "run", True, True, True, part=part)
    for again in (0, 1):
        assert not ledger.affordable(by, "run", USERS, None, again).any()
    assert ledger.affordable(by, "run", USERS, None, 2).all()
    more = one_release(epsilon=16.0, noise_multiplier=by.deviation / by.bound)
    assert more.cost.times(2).fits(16.0, more.delta) and not more.cost.times(6).fits(16.0, 1e-5)
    for draws in range(2, 7):
        may = ledger.affordable(more, "run", USERS, None, 1)
        assert may.all() == more.cost.times(draws).fits(16.0, more.delta)
        if may.all():
            ledger = after(ledger, more, "run", True, True, True, part=1)
            assert spent_of(ledger) == [by.cost + more.cost.times(draws - 1)] * 3
    # Another run is another release.
    assert not ledger.affordable(by, "another", USERS, None, 2).any()


def test_who_comes_later_pays_at_the_first_part_and_keeps_it_when_written():
    by, ledger = one_release(), PrivacyLedger()
    ledger = after(ledger, by, "run", True, False, True, part=0)
    ledger = after(ledger, by, "run", True, True, False, part=1)
    ledger = PrivacyLedger.from_bytes(ledger.to_bytes())
    assert [ledger.accounts[user].rounds for user in USERS] == [2, 2, 1]
    assert spent_of(ledger) == [by.cost] * 3
    ledger = after(ledger, by, "run", True, True, True, part=2)
    assert spent_of(ledger) == [by.cost] * 3


@pytest.mark.parametrize(
    ("n_sums", "n_published", "paid"),
    [(0, 0, 0), (1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 2, 1), (3, 2, 2), (4, 4, 1), (6, 4, 3)],
)
def test_sums_that_were_not_published_may_be_the_same_part(n_sums, n_published, paid):
    by = one_release(noise_multiplier=4.0, epsilon=100.0)
    assert by.releases(n_sums, n_published) == paid
    assert mechanism().releases(n_sums, n_published) == n_sums


def test_it_survives_being_written():
    ledger = after(PrivacyLedger(), mechanism(), "run", True, True, False)
    assert PrivacyLedger.from_bytes(ledger.to_bytes()) == ledger
    with pytest.raises(StorageError, match="cannot be read"):
        PrivacyLedger.from_bytes(b'{"format": "another"}')


def test_costs_are_those_of_the_noise():
    """rho = 1 / (2 z^2) for z = 4, and no more: shares are rounded up."""
    cost = mechanism(noise_multiplier=4.0).cost
    assert cost.laplace == 0.0
    assert cost.gaussian == pytest.approx(1 / 32, rel=1e-5)
    assert cost.gaussian <= 1 / 32
    assert Spent() + cost == cost


def ledger_of(world):
    return PrivacyLedger.of(PrivateStore(world.state, read_only=True))


def test_a_client_charges_its_users_and_leaves_them_out(tmp_path):
    privacy = {"mechanism": "gaussian", "rounds_per_user": 1, "expected_users": 3.0}
    world = World(tmp_path, privacy=privacy)
    world.whole_round(1, "count")
    world.whole_round(2)
    world.whole_round(3)
    by = mechanism_of(world.plan)
    assert by is not None
    assert world.app().run().version == 3
    ledger = ledger_of(world)
    assert ledger.run == world.run and len(ledger.accounts) == 3
    assert {(account.rounds, account.spent) for account in ledger.accounts.values()} == {
        (1, by.cost)
    }


def test_what_was_charged_stays_charged(tmp_path):
    """A round that is abandoned may have been seen: rolling it back gives nothing back."""
    world = World(tmp_path, privacy={"mechanism": "gaussian", "expected_users": 3.0})
    world.whole_round(1, "count")
    world.whole_round(2)
    world.app().run()
    before = ledger_of(world)
    with PrivateStore(world.state) as store:
        staged = after(before, mechanism(), world.run, True, True, True).to_bytes()
        store.stage(_next(world.rounds[2].headers[0]), b"update", b"private", spent=staged)
        store.roll_back()
        assert PrivacyLedger.of(store).to_bytes() == staged
    assert ledger_of(world).to_bytes() == staged


def _next(header):
    return replace(header, round=RoundId(header.round + 1))
