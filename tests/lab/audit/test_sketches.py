"""The audit of sketches, on data whose answer is known."""

import numpy as np
import pytest
from world.plans import plan_of

from fedrec.data import UserSplit
from fedrec.errors import SettingsError
from fedrec.ids import UserId
from fedrec_lab.audit import audit
from fedrec_lab.audit.sketches import decoded_rows, measurements

N_ITEMS = 60


def histories_of(n_users, n_held, seed=0):
    random = np.random.default_rng(seed)
    return [sorted(random.choice(N_ITEMS, n_held, replace=False).tolist()) for _ in range(n_users)]


def gram_of(histories):
    matrix = np.zeros((len(histories), N_ITEMS))
    for row, held in enumerate(histories):
        matrix[row, held] = 1.0
    return matrix.T @ matrix


def audited(histories, dim, least=1, **algorithm):
    nothing = np.full(len(histories), -1)
    users = UserSplit(
        user_ids=tuple(UserId(f"u{index}") for index in range(len(histories))),
        train_indptr=np.cumsum([0, *map(len, histories)]).astype(np.int64),
        train_items=np.concatenate(histories).astype(np.int64),
        validation_items=nothing,
        test_items=nothing,
    )
    plan = plan_of(
        federation={"minimum_item_users": least},
        algorithm={"name": "sketch", "dim": dim, **algorithm},
        update={"structure": "dense"},
        rounds={"total": 3},
    )
    report = audit(plan, users, N_ITEMS)
    return report, {finding.key: finding.count for finding in report.findings}


@pytest.mark.parametrize("sums", [1, 2])
def test_sparse_rows_follow_from_few_sums(sums):
    """12 users with 4 items: a row has a few counts of 60, and 24 sums each, or 48."""
    gram = gram_of(histories_of(12, 4))
    directions = measurements(gram, np.arange(N_ITEMS), 5, 24, sums)
    assert directions.shape == (N_ITEMS, 24 * sums)
    found = decoded_rows(gram @ directions, directions, np.diag(gram).copy())
    assert len(found.rows) > N_ITEMS // 2
    assert np.array_equal(found.counts, gram[found.rows])


def test_dense_rows_do_not():
    """With 30 of 60 items a user, a row has all counts, and 10 sums do not give 60 numbers."""
    gram = gram_of(histories_of(40, 30))
    assert (gram > 0).mean() > 0.9
    directions = measurements(gram, np.arange(N_ITEMS), 5, 10, 1)
    assert not len(decoded_rows(gram @ directions, directions, np.diag(gram).copy()).rows)


def test_as_many_sums_as_items_give_all_of_them():
    gram = gram_of(histories_of(40, 30))
    directions = measurements(gram, np.arange(N_ITEMS), 5, 30, 2)
    found = decoded_rows(gram @ directions, directions, np.diag(gram).copy())
    assert np.array_equal(found.counts[np.argsort(found.rows)], gram)


def test_a_known_row_helps_with_the_others():
    """What one pass decodes is known in the rows of the next: the counts are symmetric.

    Item 0 is held with every other item, by a user of its own each: its row has 59 counts, and
    15 sums cannot give it. The other rows have one count each, in column 0, and follow at once;
    then nothing of row 0 is unknown.
    """
    gram = gram_of([[0, item] for item in range(1, N_ITEMS)])
    directions = measurements(gram, np.arange(N_ITEMS), 5, 15, 1)
    found = decoded_rows(gram @ directions, directions, np.diag(gram).copy())
    assert sorted(found.rows.tolist()) == list(range(N_ITEMS))
    assert found.rows[-1] == 0
    assert np.array_equal(found.counts, gram[found.rows])


def test_the_report_counts_at_each_number_of_directions():
    histories = [[2 * user, 2 * user + 1] for user in range(30)]
    report, found = audited(histories, dim=16)
    # Every row has one count, of one user: 30 pairs, and every user alone holds their items.
    for dim in (16, 8, 4):
        assert found[f"rows_decoded_at_{dim}"] == 60
        assert found[f"small_pairs_decoded_at_{dim}"] == 30
        assert found[f"pairs_of_one_user_decoded_at_{dim}"] == 30
    assert len(report.determined) == 30
    # Two users hold each pair: rows follow, but are no user's alone.
    report, found = audited(histories * 2, dim=16, least=2)
    assert found["rows_decoded_at_16"] == 60
    assert found["pairs_of_one_user_decoded_at_16"] == 0
    assert report.determined == ()
    report, found = audited(histories_of(40, 30), dim=8)
    assert found["rows_decoded_at_8"] == 0 and report.determined == ()


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        (
            {
                "algorithm": {"name": "sketch", "form": "plain"},
                "privacy": {"mechanism": "gaussian"},
                "rounds": {"total": 2},
            },
            "noise on every value",
        ),
        ({"algorithm": {"name": "fedrap", "tables": "private"}}, "no rows of items"),
    ],
)
def test_sums_with_nothing_to_decode_are_refused(sections, word):
    users = UserSplit(
        user_ids=(UserId("u"),),
        train_indptr=np.array([0, 2]),
        train_items=np.array([0, 1]),
        validation_items=np.array([-1]),
        test_items=np.array([-1]),
    )
    plan = plan_of(update={"structure": "dense"}, **sections)
    with pytest.raises(SettingsError, match=word):
        audit(plan, users, N_ITEMS)
