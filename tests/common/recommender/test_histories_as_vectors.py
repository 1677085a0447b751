"""Recommending by ease, whose users have no vector but their history."""

from types import MappingProxyType

import numpy as np
import pytest
from world.plans import plan_of

from fedrec.data import Catalogue, UserSplit
from fedrec.errors import DataError, StorageError
from fedrec.ids import RoundId, UserId
from fedrec.model.state import PrivateState, SharedState
from fedrec.recommender import ModelFile, Recommender, UsersFile
from fedrec.training.learner import Learner

# lambda = 1; G + I of the items a, b and c is [[4, 2, 1], [2, 3, 0], [1, 0, 2]], so that B is
# [[0, 4/7, 3/8], [2/3, 0, -1/4], [1/2, -2/7, 0]]. Of "rare" no pair was counted.
SHARED = SharedState(
    MappingProxyType(
        {
            "pairs": np.array([2.0, 1.0, 0.0]),
            "item_users": np.array([3.0, 2.0, 1.0, 0.0]),
        }
    ),
    np.array([3, 2, 1, 0]),
)
NOBODY = PrivateState(MappingProxyType({}))


@pytest.fixture
def catalogue():
    return Catalogue.of(["a", "b", "c", "rare"])


@pytest.fixture
def model(catalogue):
    plan = plan_of(
        algorithm={"name": "ease", "regularisation": 1.0},
        update={"structure": "dense"},
        federation={"minimum_item_users": 1},
    )
    return ModelFile(
        plan=plan,
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(3),
        shared=SHARED,
    )


@pytest.fixture
def users():
    """anna has a, and b for test; ben has only what no user learned."""
    return UserSplit(
        user_ids=(UserId("anna"), UserId("ben")),
        train_indptr=np.array([0, 1, 2]),
        train_items=np.array([0, 3]),
        validation_items=np.array([-1, -1]),
        test_items=np.array([1, -1]),
    )


def test_a_history_is_scored_by_its_weights(model, catalogue):
    recommender = Recommender(model, catalogue)
    vector = recommender.fold_in(["a", "c", "rare"])
    assert vector.tolist() == [1.0, 0.0, 1.0]
    ids, scores = recommender.recommend_vector(vector, 9, exclude=["a", "c"])
    assert ids.tolist() == ["b"]
    assert scores.tolist() == pytest.approx([4 / 7 - 2 / 7])
    with pytest.raises(DataError, match="None of the 1 items"):
        recommender.fold_in(["rare"])
    with pytest.raises(DataError, match="shape"):
        recommender.recommend_vector(np.ones(4), 1)


def test_known_users_are_answered_from_all_that_they_have(model, catalogue, users):
    recommender = Recommender(model, catalogue, UsersFile.of(users, NOBODY))
    ids, scores = recommender.recommend("anna", 5)
    assert ids.tolist() == ["c"]
    assert scores.tolist() == pytest.approx([3 / 8 - 1 / 4])
    seen = recommender.recommend("anna", 5, exclude_seen=False)
    assert seen[0].tolist() == ["a", "b", "c"]
    assert seen[1].tolist() == pytest.approx([2 / 3, 4 / 7, 1 / 8])
    # Whose history has no learned item gets every item, in the order of the catalogue.
    assert recommender.recommend("ben", 5)[0].tolist() == ["a", "b", "c"]
    learner = Learner(model.plan, len(catalogue), device="cpu")
    rows, own = learner.local.recommend(SHARED, users, NOBODY, 0, 5)
    assert list(catalogue.ids_of(rows)) == ["c"]
    assert own.tolist() == pytest.approx([1 / 8])


def test_it_survives_the_disk(model, catalogue, users, tmp_path):
    Recommender(model, catalogue, UsersFile.of(users, NOBODY)).save(tmp_path)
    loaded = Recommender.load(tmp_path)
    assert loaded.user_ids == ("anna", "ben")
    assert loaded.recommend("anna", 1)[0].tolist() == ["c"]


def test_similar_items_have_similar_weights(model, catalogue):
    ids, scores = Recommender(model, catalogue).similar_items("b", 2)
    # Rows of B transposed: a [0, 2/3, 1/2], b [4/7, 0, -2/7], c [3/8, -1/4, 0].
    of_a = -(1 / 2) * (2 / 7) / np.hypot(2 / 3, 1 / 2) / np.hypot(4 / 7, 2 / 7)
    of_c = (3 / 8) * (4 / 7) / np.hypot(3 / 8, 1 / 4) / np.hypot(4 / 7, 2 / 7)
    assert ids.tolist() == ["c", "a"]
    assert scores.tolist() == pytest.approx([of_c, of_a], abs=1e-6)


def test_a_model_of_another_size_is_refused(model, users):
    tensors = {**SHARED.tensors, "pairs": np.zeros(5)}
    wrong = SharedState(MappingProxyType(tensors), SHARED.holders)
    broken = ModelFile(
        plan=model.plan,
        catalogue_fingerprint=model.catalogue_fingerprint,
        round=model.round,
        shared=wrong,
    )
    with pytest.raises(StorageError, match="not match ease with 4 items"):
        Recommender(broken, Catalogue.of(["a", "b", "c", "rare"]), UsersFile.of(users, NOBODY))
