"""One silo whose first version is served."""

import pytest
from client.serve.asking import holder_of
from world.silo import Silo

from fedrec_client.own_recommender import own_recommender
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import Gate


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A silo with version 3; tests change nothing of it."""
    silo = Silo(tmp_path_factory.mktemp("silo"))
    silo.publish(3)
    return silo


@pytest.fixture(scope="session")
def served(published):
    holder = holder_of(published)
    holder.look()
    assert holder.problem is None
    return holder


@pytest.fixture
def application(served):
    return RecommendationApi(served, Gate())


@pytest.fixture(scope="session")
def known(published):
    return own_recommender(published.settings)


@pytest.fixture
def silo(tmp_path):
    """One of its own, to which nothing was published."""
    return Silo(tmp_path)
