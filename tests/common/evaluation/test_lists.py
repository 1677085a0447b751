"""Metrics of top-K lists have RecBole's and LensKit's own values, and those derived by hand."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.splits import HeldOut
from fedrec.evaluation.lists import activity_groups, auc, list_rates

N_USERS, N_ITEMS = 40, 30
RECBOLE = {
    3: {"hr": 0.5, "precision": 0.1916666667, "recall": 0.1825, "map": 0.1597222222,
        "mrr": 0.3166666667, "ndcg": 0.2202339862, "coverage": 1.0, "gini": 0.1994444444},
    5: {"hr": 0.625, "precision": 0.155, "recall": 0.2279166667, "map": 0.1445,
        "mrr": 0.3429166667, "ndcg": 0.2187988967, "coverage": 1.0, "gini": 0.1803333333},
    10: {"hr": 0.7, "precision": 0.1425, "recall": 0.3775, "map": 0.1874566799,
         "mrr": 0.3534325397, "ndcg": 0.2907750351, "coverage": 1.0, "gini": 0.1098333333},
}  # fmt: skip
"""What `recbole.evaluator.metrics` of RecBole 1.2.1 returned for `ranked()`, run by itself."""
RECBOLE_GAUC = 0.5631052953
LENSKIT = {
    3: {"precision": 0.19166666666666665, "hr": 0.5, "map": 0.15972222222222224,
        "mrr": 0.31666666666666665, "ndcg": 0.220233986192721, "gini": 0.19944444444444445},
    5: {"precision": 0.155, "hr": 0.625, "map": 0.14450000000000002,
        "mrr": 0.34291666666666665, "ndcg": 0.2187988966848861, "gini": 0.18033333333333335},
    10: {"precision": 0.14250000000000002, "hr": 0.7, "map": 0.18745667989417986,
         "mrr": 0.3534325396825396, "ndcg": 0.2907750350687578, "gini": 0.10983333333333334},
}  # fmt: skip
"""What `lenskit.metrics.ranking` of LensKit 2025.8.1 returned, with `LogRankWeight(offset=1)`."""
LENSKIT_RECALL = {3: 0.2375, 5: 0.2354166666666667, 10: 0.37749999999999995}
LIBRARIES = (
    "recbole==1.2.1", "lenskit==2025.8.1", "deepmerge==4.0.0", "humanize==4.17.0",
    "isal==1.9.1", "lazy-loader==0.6", "more-itertools==11.2.1", "prettytable==3.18.0",
    "psutil==7.2.2", "py-cpuinfo==9.0.0", "pydantic-settings==2.16.3", "python-dotenv==1.2.4",
    "pyzmq==27.3.0", "wcwidth==0.9.4", "xopen==2.0.2",
)  # fmt: skip
"""Both, and what LensKit imports beyond fedrec's own dependencies."""


def ranked():
    """Return scores, lists of 10 and test items, by a seed."""
    random = np.random.default_rng(36)
    scores = random.permuted(np.tile(np.arange(N_ITEMS), (N_USERS, 1)), axis=1)
    sizes = random.integers(1, 7, N_USERS)
    test = [np.sort(random.permutation(N_ITEMS)[:size]) for size in sizes]
    return scores, np.argsort(-scores, axis=1)[:, :10], held_of(test)


def held_of(test):
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in test])])
    return HeldOut(indptr=indptr, items=np.concatenate(test).astype(np.int64))


@pytest.mark.parametrize("at", [3, 5, 10])
def test_recbole_and_lenskit_have_the_same_figures(at):
    _, lists, held = ranked()
    found = list_rates(lists, held, at, np.ones(N_ITEMS, np.int64), N_USERS)
    for theirs, digits in ((RECBOLE[at], 1e-9), (LENSKIT[at], 1e-12)):
        for name, value in theirs.items():
            assert getattr(found, name) == pytest.approx(value, abs=digits), name
    # LensKit's recall has min(R, K) as its divisor.
    sizes = np.diff(held.indptr)
    ours = [
        list_rates(lists[[user]], held.select(np.arange(N_USERS) == user), at,
                   np.ones(N_ITEMS, np.int64), N_USERS).recall
        * sizes[user] / min(sizes[user], at)
        for user in range(N_USERS)
    ]  # fmt: skip
    assert np.mean(ours) == pytest.approx(LENSKIT_RECALL[at], abs=1e-12)


@pytest.mark.long
def test_these_are_the_figures_of_their_own_code(tmp_path):
    """It installs both libraries without their dependencies, which would be torch with CUDA."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path)
    subprocess.run((*pip, *LIBRARIES), check=True)
    scores, lists, held = ranked()
    test = np.split(held.items, held.indptr[1:-1])
    given = {
        "scores": scores.tolist(),
        "lists": lists.tolist(),
        "test": [items.tolist() for items in test],
        "ats": [*RECBOLE],
    }
    done = subprocess.run(
        (sys.executable, Path(__file__).with_name("of_other_libraries.py"), tmp_path),
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gauc"] == pytest.approx(RECBOLE_GAUC, abs=1e-9)
    for at, recbole, lenskit in zip(RECBOLE, found["recbole"], found["lenskit"], strict=True):
        assert recbole == pytest.approx(RECBOLE[at], abs=1e-9)
        assert lenskit == pytest.approx(LENSKIT[at] | {"recall": LENSKIT_RECALL[at]}, abs=1e-12)


def test_recbole_s_gauc_is_the_auc():
    scores, _, held = ranked()
    above = []
    for user, item in zip(held.owner, held.items, strict=True):
        wanted = held.items[held.owner == user]
        others = np.delete(scores[user], wanted)
        above.append((others > scores[user, item]).sum())
    n_others = N_ITEMS - np.diff(held.indptr)
    assert auc(np.array(above, float), n_others, held) == pytest.approx(RECBOLE_GAUC, abs=1e-9)


def test_by_hand():
    """Two of three users have test items: item 0 and 3 of the first, item 4 of the second."""
    held = held_of([[0, 3], [4], []])
    lists = np.array([[0, 1, 3], [1, 2, -1], [1, 2, 0]])
    found = list_rates(lists, held, 3, np.array([2, 2, 1, 0, 1]), 3)
    assert (found.users, found.hr, found.mrr) == (2, 0.5, 0.5)
    assert found.precision == pytest.approx((2 / 3) / 2)
    assert found.recall == 0.5
    assert found.map == pytest.approx((1 + 2 / 3) / 2 / 2)
    assert found.ndcg == pytest.approx((1 + 1 / 2) / (1 + 1 / np.log2(3)) / 2)
    # Lists of the two: items 0, 1, 3, 1, 2.
    assert found.coverage == 4 / 5
    assert found.novelty == pytest.approx(-np.mean(np.log2(np.array([2, 2, 1, 2, 1]) / 3)))
    assert found.gini == pytest.approx((-4 * 0 - 2 + 0 + 2 + 4 * 2) / (5 * 5))
    assert list_rates(lists[2:], held_of([[]]), 3, np.ones(5, np.int64), 3) is None
    assert auc(np.array([1.0, 0.5, 0.0]), np.array([2, 0, 2]), held) == pytest.approx(0.625)
    assert auc(np.zeros(0), np.array([3]), held_of([[]])) is None


def test_users_of_the_same_activity_are_in_one_group():
    found = activity_groups(np.array([1, 1, 1, 5, 9, 9]), 3)
    assert [(span, inside.sum()) for span, inside in found] == [("1", 3), ("5", 1), ("9", 2)]
