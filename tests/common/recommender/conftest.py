"""A model written down by hand: two tastes, so that the right answers are known."""

from types import MappingProxyType

import numpy as np
import pytest
from world.plans import plan_of

from fedrec.data import Catalogue, UserSplit
from fedrec.ids import RoundId, UserId
from fedrec.model.state import PrivateState, SharedState
from fedrec.recommender import ModelFile, Recommender, UsersFile


@pytest.fixture(scope="session")
def catalogue():
    return Catalogue.of(["a0", "b0", "a1", "b1", "a2", "b2", "rare"])


@pytest.fixture(scope="session")
def model(catalogue):
    """Items a* lie along the first axis, b* along the second; no user learned `rare`."""
    table = np.array([[3, 0], [0, 3], [2, 0.1], [0.1, 2], [1, 0.1], [0.1, 1], [99, 99]], float)
    plan = plan_of(
        algorithm={"dim": 2}, update={"structure": "dense"}, federation={"minimum_item_users": 10}
    )
    return ModelFile(
        plan=plan,
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(17),
        shared=SharedState(
            MappingProxyType({"item_embedding": table}), np.array([10, 10, 10, 10, 10, 10, 9])
        ),
    )


@pytest.fixture(scope="session")
def users():
    """anna likes a* and has a0, a2 and b0; ben likes b* and has nothing of the catalogue's rest."""
    split = UserSplit(
        user_ids=(UserId("anna"), UserId("ben"), UserId("cleo")),
        train_indptr=np.array([0, 1, 2, 7]),
        train_items=np.array([0, 1, 0, 1, 2, 3, 4]),
        validation_items=np.array([4, -1, -1]),
        test_items=np.array([1, -1, -1]),
    )
    vectors = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    return UsersFile.of(split, PrivateState(MappingProxyType({"user_embedding": vectors})))


@pytest.fixture
def recommender(model, catalogue, users):
    return Recommender(model, catalogue, users)


@pytest.fixture
def users_with_rare(users):
    """The same users, of whom ben and cleo also have `rare`; anna has a0 as they do."""
    split = UserSplit(
        user_ids=users.user_ids,
        train_indptr=np.array([0, 1, 3, 6]),
        train_items=np.array([0, 0, 6, 0, 1, 6]),
        validation_items=np.array([-1, -1, -1]),
        test_items=np.array([-1, -1, -1]),
    )
    return UsersFile.of(split, users.private)
