"""Folders of evaluations side by side, and runs that differ in their seed alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedrec.errors import SettingsError
from fedrec.evaluation.metrics import rates_of_ranks
from fedrec.settings.validation import load_settings
from fedrec_lab.comparison.runs import compare_runs
from fedrec_lab.reports.comparison_table import ComparisonRow, ComparisonTable, Sample
from fedrec_lab.reports.run_folder import RunFolder

USERS = SimpleNamespace(user_ids=("a", "b", "c", "d"), test_items=np.arange(4))
RANKS = {1: [0, 0, 10, 3], 2: [0, 1, 10, 10], 3: [10, 10, 10, 0], 4: [0, 0, 0, 0]}


@pytest.fixture
def evaluation(tmp_path):
    """Write the folder of an evaluation whose users have the ranks of some seeds."""

    def make(name, *seeds, dim=4, protocols=("full",), users=USERS, kept=True):
        folder = tmp_path / name
        folder.mkdir()
        settings = load_settings(algorithm="fedmf")
        own = settings.federation.model_copy(update={"seed": seeds[0]})
        sized = settings.algorithm.model_copy(update={"dim": dim})
        run = RunFolder(folder)
        run.write_settings(settings.model_copy(update={"federation": own, "algorithm": sized}))
        run.write_environment()
        ranks = {(key, seed): np.array(RANKS[seed], float) for key in protocols for seed in seeds}
        samples = {
            key: [Sample(seed=one, rates=rates_of_ranks(ranks[key, one], 10)) for one in seeds]
            for key in protocols
        }
        row = ComparisonRow(method="fedmf", label="fedmf", samples=samples)
        run.write_results(ComparisonTable(rows=(row,), protocols=protocols, at=10))
        if kept:
            run.write_ranks(ranks, users)
        return folder

    return make


def test_evaluations_have_paired_intervals(evaluation):
    one, two = (
        evaluation("one", 1, 2, protocols=("full", "sampled")),
        evaluation("two", 3, 4, dim=8),
    )
    found = compare_runs(one, two)
    assert found.settings["algorithm.dim"] == ("4", "8")
    assert found.table.protocols == ("full", "sampled")
    hr = found.differences["two"]["hr"].difference
    # By user, the means over seeds are 1, 1, 0, 0.5 and 0.5, 0.5, 0.5, 1.
    assert hr.estimate == pytest.approx(0.0)
    assert hr.low == -0.5 and hr.high == 0.5
    assert "one minus two: HR@10 = +0.0000" in found.to_text()
    assert found.to_record()["over_seeds"]["one"]["hr"]["estimate"] == pytest.approx(0.625)
    assert not found.figures


def test_runs_that_differ_in_their_seed_are_one_row(evaluation):
    folders = [evaluation(f"run + tail-{seed}", seed) for seed in (1, 2, 3)]
    other = evaluation("other", 4, dim=8)
    found = compare_runs(*folders, other)
    assert found.runs == ("run + tail-1 + 2 seeds", "other")
    assert found.settings == {"federation.seed": ("1, 2, 3", "4"), "algorithm.dim": ("4", "8")}
    rates = np.array([0.75, 0.5, 0.25])
    interval = found.over_seeds["run + tail-1 + 2 seeds"]["hr"]
    # Student's t of 2 degrees of freedom has p = 0.975 at (2p - 1) / sqrt(2p (1 - p)).
    far = 0.95 / np.sqrt(2 * 0.975 * 0.025) * rates.std(ddof=1) / np.sqrt(3)
    expected = (0.5 - far, 0.5 + far)
    assert (interval.low, interval.high) == pytest.approx(expected)
    assert list(found.over_seeds) == ["run + tail-1 + 2 seeds"]
    assert found.differences["other"]["hr"].difference.estimate == pytest.approx(-0.5)
    assert found.table.rows[0].result("full").text("hr") == "0.5000 ± 0.2500"
    alone = compare_runs(*folders[:2])
    assert alone.runs == ("run + tail-1 + 1 seed",) and alone.settings == {}


def test_a_seed_counts_once_and_users_must_match(evaluation):
    one, again = evaluation("one", 1), evaluation("again", 1)
    elsewhere = SimpleNamespace(user_ids=("e", "f", "g", "h"), test_items=np.arange(4))
    others, unknown = evaluation("others", 2, users=elsewhere), evaluation("unknown", 3, kept=False)
    found = compare_runs(one, again, others, unknown)
    assert found.runs == ("one", "again", "others", "unknown")
    assert found.differences["again"]["hr"].difference.estimate == 0.0
    assert found.without == {
        "others": "it was measured on other users or items",
        "unknown": "unknown doesn't have the ranks of single users",
    }
    (unknown / "results.json").unlink()
    with pytest.raises(SettingsError, match="no measured round and no results"):
        compare_runs(one, unknown)
