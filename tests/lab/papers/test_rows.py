"""The published rows: what they say and that they can be run."""

import pytest

from fedrec.algorithms import FedMFSettings, PFedCLRSettings, PFedRecSettings
from fedrec.data import PUBLIC
from fedrec.errors import SettingsError
from fedrec.plan.combinations import find_conflicts
from fedrec.settings.validation import load_settings
from fedrec_lab.papers import ROWS, rows_named
from fedrec_lab.papers.reproduction import row_settings


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
class TestEveryRow:
    def test_its_plan_is_valid(self, row, tmp_path_factory):
        folder = tmp_path_factory.mktemp("row")
        assert not find_conflicts(row.plan)
        assert row_settings(row, folder).plan == row.plan
        assert load_settings(folder / "row.toml", environ={}).plan == row.plan

    def test_it_is_run_as_published(self, row):
        """Every item is trained, nothing is encrypted, the protocol is the published one."""
        assert row.plan.federation.minimum_item_users == 1
        assert row.plan.protection.name == "none"
        assert row.plan.evaluation.protocol == "paper"
        assert row.plan.evaluation.at == 10
        assert row.plan.federation.maximum_users >= PUBLIC[row.dataset].copies[0].counts.users

    def test_its_figures_are_shares(self, row):
        assert 0 < row.ndcg < row.hr < 1
        assert row.source and row.minutes > 0


def test_published_figures():
    """PLGC table II, FedRecGEL 2 and 3, PFedCLR 1, 2 and 9, FedRAP 1, 3 and 4, CoLR 4."""
    printed = {
        "pfedrec/ml-100k": (0.7162, 0.4344),
        "pfedrec/filmtrust": (0.7876, 0.6483),
        "pfedrec/filmtrust/pfedclr": (0.6896, 0.5479),
        "pfedrec/amazon-video": (0.5959, 0.3813),
        "fedmf/ml-100k": (0.6505, 0.3840),
        "fedmf/ml-100k/pfedclr": (0.4846, 0.2723),
        "fedmf/filmtrust": (0.6938, 0.4921),
        "fedmf/amazon-video": (0.4557, 0.2602),
        "fedncf/ml-100k": (0.6089, 0.3268),
        "pfedclr/ml-100k": (0.9989, 0.9225),
        "pfedclr/ml-100k/cf": (0.8452, 0.6955),
        "pfedclr/ml-100k/noise-0.5": (0.9979, 0.9215),
        "pfedclr/filmtrust": (0.9102, 0.7798),
        "pfedclr/filmtrust/af": (0.6717, 0.5429),
        "pfedclr/filmtrust/noise-1": (0.8882, 0.6965),
        "fedrap/ml-100k": (0.9709, 0.8781),
        "fedrap/ml-100k/noise": (0.9364, 0.8015),
        "fedrap/filmtrust": (0.9174, 0.7767),
        "fedrap/filmtrust/pfedclr": (0.6826, 0.4628),
        "plgc/ml-100k/fedmf": (0.8629, 0.5736),
        "plgc/ml-100k/fedncf": (0.8219, 0.5516),
        "plgc/ml-100k/pfedrec": (0.8744, 0.5681),
        "plgc/ml-100k/fedrap": (0.9981, 0.9317),
        "plgc/ml-100k/gpfedrec": (0.8019, 0.5519),
        "plgc/ml-100k/perfedrec": (0.7034, 0.5031),
        "gpfedrec/ml-100k": (0.7285, 0.4377),
        "gpfedrec/ml-100k/pfedclr": (0.6840, 0.3982),
        "gpfedrec/filmtrust": (0.7857, 0.6407),
        "perfedrec/ml-100k": (0.6119, 0.4409),
        "perfedrec/filmtrust": (0.9052, 0.7695),
        "cofedrec/filmtrust": (0.8126, 0.6729),
        "pfedgraph/ml-100k": (0.6204, 0.4937),
        "pfedgraph/filmtrust": (0.6956, 0.4982),
        "fedrecgel/filmtrust": (0.9166, 0.8201),
        "fedrecgel/filmtrust/without-non-shared": (0.9163, 0.7729),
        "fedrecgel/filmtrust/without-shared": (0.9158, 0.8172),
        "fedrecgel/amazon-video": (0.6270, 0.4133),
        "scolr/ml-1m/rank-64": (0.6386, 0.3704),
        "scolr/ml-1m/rank-2": (0.5784, 0.3258),
    }
    assert {name: (ROWS[name].hr, ROWS[name].ndcg) for name in printed} == printed


def test_the_paper_s_settings():
    colr = ROWS["colr/ml-1m/rank-8"].plan
    assert isinstance(colr.algorithm, FedMFSettings)
    assert (colr.algorithm.dim, colr.algorithm.learning_rate, colr.algorithm.regularisation) == (
        64,
        0.5,
        5e-4,
    )
    assert (colr.algorithm.local_epochs, colr.algorithm.batch_size) == (2, 256)
    assert (colr.update.rank, colr.rounds.total, colr.rounds.user_fraction) == (8, 1000, 0.01)
    # The same budget: 8 of 64 numbers of each item row.
    assert ROWS["topk/ml-1m/8-of-64"].plan.update.ratio == 8 / 64
    pfedclr = ROWS["pfedclr/filmtrust/cf"].plan
    assert isinstance(pfedclr.algorithm, PFedCLRSettings)
    assert (pfedclr.algorithm.dim, pfedclr.algorithm.local_epochs) == (16, 10)
    assert (pfedclr.rounds.total, pfedclr.rounds.user_fraction) == (100, 0.6)
    assert pfedclr.rounds.user_sampling == "count"
    pfedrec = ROWS["pfedrec/ml-100k"].plan.algorithm
    assert isinstance(pfedrec, PFedRecSettings)
    assert (pfedrec.dim, pfedrec.learning_rate, pfedrec.item_rate_scale) == (32, 0.1, 80)


def test_a_name_is_a_row_or_what_rows_begin_with():
    assert [row.name for row in rows_named("pfedrec/ml-100k")] == ["pfedrec/ml-100k"]
    assert len(rows_named("scolr")) == len(rows_named("scolr/ml-1m/")) == 6
    assert {row.name for row in rows_named("fedmf/filmtrust/pfedclr")} == {
        "fedmf/filmtrust/pfedclr"
    }
    with pytest.raises(SettingsError, match="no published row 'col'"):
        rows_named("col")
