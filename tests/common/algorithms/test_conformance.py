"""Every algorithm of the registry keeps the seam's contract."""

from typing import get_args

import pytest
from conformance.algorithm_suite import AlgorithmSuite

from fedrec.algorithms import ALGORITHMS
from fedrec.plan.combinations import COMBINATIONS
from fedrec.settings.explain import all_settings

pytestmark = pytest.mark.slow


class TestAlgorithms(AlgorithmSuite):
    """Parametrised over `ALGORITHMS` and `UPDATES`."""


def test_settings_and_registry_know_the_same_algorithms():
    named = set(get_args(all_settings()["algorithm.name"].annotation))
    assert named == set(ALGORITHMS) == {row.algorithm for row in COMBINATIONS}
