"""Every algorithm of the registry keeps the seam's contract."""

from typing import get_args

import pytest
from conformance.algorithm_suite import AlgorithmSuite
from conformance.party import ALGORITHM_SETTINGS, plan_of

from fedrec.algorithms import ALGORITHMS
from fedrec.plan.combinations import COMBINATIONS
from fedrec.settings.explain import all_settings

pytestmark = pytest.mark.slow


class TestAlgorithms(AlgorithmSuite):
    """Parametrised over `ALGORITHMS` and `UPDATES`."""


@pytest.mark.long
class TestPLGCApart(AlgorithmSuite):
    """PLGC around algorithms whose server makes a model for each user."""

    @pytest.fixture(scope="class", params=["gpfedrec", "perfedrec"])
    @classmethod
    def base(cls, request):
        return {"name": request.param, **ALGORITHM_SETTINGS[request.param]}

    @pytest.fixture(scope="class")
    @classmethod
    def choice(cls):
        return "plgc", "dense"

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, base):
        own = {"base": base | {"local_epochs": 2}}
        return plan_of("plgc", "dense", algorithm=own, protection={"name": "none"})


def test_settings_and_registry_know_the_same_algorithms():
    named = set(get_args(all_settings()["algorithm.name"].annotation))
    assert named == set(ALGORITHMS) == {row.algorithm for row in COMBINATIONS}
