"""The audit of pair counts, on data whose answer is known."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from world.plans import plan_of

from fedrec.data import UserSplit
from fedrec.ids import UserId
from fedrec_lab.audit import audit
from fedrec_lab.audit.sums import determined_users


def rows_of(histories):
    """Return histories as compressed rows."""
    pointers = np.concatenate([[0], np.cumsum([len(held) for held in histories])])
    items = np.array([item for held in histories for item in sorted(held)], dtype=np.int64)
    return pointers.astype(np.int64), items


def inferred(histories, n_items):
    return determined_users(*rows_of(histories), n_items)


def audited(histories, n_items, least=1, algorithm="ease"):
    pointers, items = rows_of(histories)
    nothing = np.full(len(histories), -1)
    users = UserSplit(
        user_ids=tuple(UserId(f"u{index}") for index in range(len(histories))),
        train_indptr=pointers,
        train_items=items,
        validation_items=nothing,
        test_items=nothing,
    )
    plan = plan_of(
        federation={"minimum_item_users": least},
        algorithm={"name": algorithm},
        update={"structure": "dense"},
    )
    report = audit(plan, users, n_items)
    return report, {finding.key: finding.count for finding in report.findings}


def test_the_row_of_an_item_with_one_holder_is_that_users_history():
    report, found = audited([{0, 1}, {0, 1}, {0, 2}], 3)
    assert report.determined == ("u2",)
    assert found == {
        "determined_directly": 1,
        "determined_completely": 1,
        "users_with_a_pair_alone": 1,
        "pairs_of_one_user": 1,
        "items_of_one_user": 1,
    }


def test_a_pair_of_one_user_decides_where_nothing_else_goes_with_both():
    # Every user is the only one with their pair, and no third item goes with both of it.
    found = inferred([{0, 1}, {0, 3}, {1, 2}, {2, 3}], 4)
    assert found.determined.all()
    assert found.directly.all()


def test_counts_that_others_explain_as_well_determine_no_user():
    # {0, 1, 2}, {0}, {1} and {2} have the same counts.
    found = inferred([{0, 1}, {0, 2}, {1, 2}], 3)
    assert not found.determined.any()
    assert found.alone.all()


def test_an_item_that_always_comes_with_another_is_certain():
    # Both holders of 0 hold 2, so that the one with 0 and 1 does.
    assert inferred([{0, 1, 2}, {0, 2}, {1}], 3).directly.tolist()[0]
    # Of the two holders of 0 one holds 2, of the two of 1 one: it may be one who has both or two.
    assert not inferred([{0, 1}, {0, 2}, {1, 2}], 3).directly[0]


def test_holders_that_do_not_fit_beside_each_other_are_the_same():
    # 2 has 3 holders; of 0 with 2 there are 2, of 1 with 2 also: one of the 3 holds all.
    histories = [{0, 1, 2}, {0, 2}, {1, 2}, {0}, {1}]
    gram = inferred(histories, 3).gram
    assert gram.tolist() == [[3, 1, 2], [1, 3, 2], [2, 2, 3]]
    assert inferred(histories, 3).directly[0]


def test_who_was_found_uncovers_others():
    # 2 is of the first user alone; without that user, 0 and 1 are of the second alone.
    found = inferred([{0, 1, 2}, {0, 1}, {0}, {1}], 3)
    assert found.directly.tolist() == [True, False, False, False]
    assert found.determined.tolist()[:2] == [True, True]


def test_items_of_too_few_holders_are_not_released():
    histories = [{0, 1}, {0, 3}, {1, 2}, {2, 3}, {0, 4}]
    report, found = audited(histories, 6, least=2)
    assert (report.n_items, report.n_active) == (6, 4)
    # {0, 4} is {0} among what is released: what is left when the others are taken away.
    assert report.determined == ("u0", "u1", "u2", "u3", "u4")
    assert found["determined_directly"] == found["determined_completely"] == 4
    assert found["items_of_one_user"] == 0


def explanations(gram):
    """Return every multiset of histories with these counts, by trying them all."""
    n_items = len(gram)
    subsets = [
        frozenset(chosen)
        for size in range(n_items, 0, -1)
        for chosen in combinations(range(n_items), size)
    ]

    def search(index, left):
        if index == len(subsets):
            if not left.any():
                yield Counter()
            return
        own = np.zeros(n_items, dtype=int)
        own[list(subsets[index])] = 1
        outer = np.outer(own, own)
        times, rest = 0, left
        while (rest >= 0).all():
            for found in search(index + 1, rest):
                yield found + Counter({subsets[index]: times})
            times, rest = times + 1, rest - outer

    return list(search(0, np.array(gram, dtype=int)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_who_is_determined_is_in_every_explanation_of_the_counts(seed):
    rng = np.random.default_rng(seed)
    histories = []
    while len(histories) < 5:
        held = set(np.nonzero(rng.random(4) < rng.choice([0.3, 0.6]))[0].tolist())
        if held:
            histories.append(held)
    found = inferred(histories, 4)
    claimed = Counter(
        frozenset(held) for held, sure in zip(histories, found.determined, strict=True) if sure
    )
    every = explanations(found.gram)
    assert Counter(map(frozenset, histories)) in every
    assert all(claimed <= explanation for explanation in every)


def test_the_inference_finds_a_user_in_such_data():
    rng = np.random.default_rng(0)
    histories = [set(rng.choice(30, 4, replace=False).tolist()) for _ in range(40)]
    found = inferred(histories, 30)
    assert 0 < found.directly.sum() <= found.determined.sum()


@pytest.mark.parametrize("algorithm", ["fedmf", "fedals", "pfedrec", "fedncf"])
def test_rows_are_about_their_holders(algorithm):
    histories = [{0, 1}, {0, 1}, {0, 2}, {3, 0}, {3, 2}]
    report, found = audited(histories, 5, least=1, algorithm=algorithm)
    assert report.determined == ()
    assert found["fewest_holders"] == 2
    single, found = audited([*histories, {4, 5}], 6, least=1, algorithm=algorithm)
    assert single.determined == ("u5",)
    assert found == {
        "fewest_holders": 1,
        "items_kept_back": 0,
        "items_of_one_user": 2,
        "users_alone_with_an_item": 1,
    }
    kept, found = audited([*histories, {4, 5}], 6, least=3, algorithm=algorithm)
    assert kept.determined == ()
    assert (kept.n_active, found["fewest_holders"], found["items_kept_back"]) == (1, 4, 5)
