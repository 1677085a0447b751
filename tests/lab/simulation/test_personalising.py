"""Servers that read each update, in one process: the same models however users are grouped."""

from unittest.mock import patch

import numpy as np
import pytest
from conformance.party import ALGORITHM_SETTINGS
from conformance.unrounded import assert_near
from lab.simulation.runs import bits, run
from world.plans import params

from fedrec.algorithms import ALGORITHMS, individual
from fedrec.data import generate, leave_one_out
from fedrec.errors import RefusedError
from fedrec.model.tables import TableRoom
from fedrec.settings.schema import Settings
from fedrec.training.learner import Learner
from fedrec.training.personalising import sent_table

pytestmark = pytest.mark.slow

APART = {
    name: {"name": name, **ALGORITHM_SETTINGS[name]}
    for name, kind in ALGORITHMS.items()
    if kind.about.supports.protections == ("none",)
}
OVER = {
    f"plgc-{name}": {"name": "plgc", "base": APART[name] | {"local_epochs": 2}}
    for name in APART
    if ALGORITHMS[name].mixes_with
}


@pytest.fixture(scope="module")
def data():
    made = generate(n_users=24, n_items=50, n_clusters=3, interactions_per_user=10, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


@pytest.fixture(scope="module", params=params(*APART, long=OVER))
def settings(request, settings_of):
    update = {"structure": "dense", "clip": 64.0, "rank": 4}
    made = settings_of(update=update, rounds={"total": 3}).model_dump()
    return Settings.model_validate(made | {"algorithm": (APART | OVER)[request.param]})


@pytest.fixture(scope="module")
def alone(settings, data):
    return run(settings, data)


def test_the_same_bits_for_any_grouping_stopped_and_with_tables_in_files(
    settings, data, alone, tmp_path
):
    assert bits(run(settings, data, n_clients=7)) == bits(alone)
    rounds = iter([False, False, True])
    with patch.object(TableRoom, "is_enough_for", lambda self, n_users, widths: False):
        run(settings, data, folder=tmp_path, stop=lambda: next(rounds))
        in_files = run(settings, data, folder=tmp_path, n_clients=2, resume=True)
    assert in_files.last.private.in_files
    assert bits(in_files) == bits(alone)


def test_blocks_of_few_users_change_no_more_than_rounding(settings, data, alone):
    with patch.object(individual, "BLOCK_BYTES", 1 << 14):
        again = run(settings, data)
    for name, values in alone.last.private.arrays().items():
        if values.any():
            # Adam divides by the size of small gradients.
            assert_near(again.last.private.arrays()[name], values, 1e-2, name)


def test_a_table_is_read_as_a_client_of_one_user_sends_it(settings, data):
    users, catalogue = data
    learner = Learner(settings.plan, len(catalogue), device="cpu")
    algorithm, shared = learner.server.algorithm, learner.server.initial_shared()
    private = learner.local.initial_private(users)
    own = algorithm.sent.sources["item_embedding"]
    (tensor,) = [each for each in algorithm.tensors if each.name == "item_embedding"]
    version = shared.tensors["item_embedding"]
    for index in (0, 13):
        one = users.select(np.array([index]))
        part = learner.contribute("train", 2, shared, one, private.rows(np.array([index])))
        sent = learner.server.layout.changes_of(part.vector)["item_embedding"]
        assert sent.any()
        expected = (version + sent * tensor.step).astype(np.float32)
        found = sent_table(part.private.tensors[own], version, tensor)
        assert np.array_equal(found[0], expected)


def test_what_is_protected_has_a_client_for_each_user_as_over_grpc(settings, data):
    with pytest.raises(RefusedError, match="a client is one user"):
        run(settings, data, n_clients=7, protect=True)


def test_users_that_sit_out_keep_their_model(settings_of, data):
    """A quarter of the users trains: the others' received tables stay as they begin."""
    settings = settings_of(
        algorithm={"name": "gpfedrec", **ALGORITHM_SETTINGS["gpfedrec"]},
        update={"structure": "dense", "clip": 64.0, "rank": 4},
        rounds={"total": 1, "user_fraction": 0.25, "user_sampling": "count"},
    )
    result = run(settings, data)
    first = Learner(settings.plan, len(data[1]), device="cpu").local.initial_private(data[0])
    received = "smoothed_item_embedding"
    moved = (result.last.private.tensors[received] != first.tensors[received]).any((1, 2))
    assert moved.sum() == len(data[0]) // 4
