"""A column that flatters everything in it says so; one that does not stays as it is."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest

from fedrec.data import Catalogue, Interactions, UserSplit, leave_one_out
from fedrec.evaluation.metrics import Rates
from fedrec.plan.cautions import explained, marked, measured_caution, protocol_cautions
from fedrec.plan.schema import EvaluationSettings, FederationSettings, Plan, PrivacySettings
from fedrec_lab.reports.comparison_table import ComparisonRow, ComparisonTable, Sample


def long_tailed() -> tuple[UserSplit, int]:
    """Return 50 users of 20 items that all hold, beside a thousand items that one user has."""
    rows = [(f"u{user}", f"a{item}") for user in range(50) for item in range(user % 5, 15)]
    rows += [(f"u{user}", f"z{user}-{item}") for user in range(50) for item in range(20)]
    random = np.random.default_rng(1)
    times = random.integers(0, 1000, len(rows))
    times[: 50 * 13] += 1000  # what many hold is last, so that it is held out
    users, items = zip(*rows, strict=True)
    catalogue = Catalogue.of(sorted(set(items)))
    found = Interactions.from_arrays(users, items, times.tolist())
    return leave_one_out(found, catalogue), len(catalogue)


def test_long_tailed_data_is_marked_under_sampled_and_paper_alone():
    users, n_items = long_tailed()
    found = protocol_cautions(Plan(), users, n_items, ("full", "sampled", "paper"))
    assert set(found) == {"sampled", "paper"}
    assert "fewer than 10 users. They are never trained" in found["sampled"]
    assert re.search(r"knows nothing gets HR@10 0\.9\d here, not 0\.10", found["sampled"])
    assert protocol_cautions(Plan(), users, n_items, ("full",)) == {}


def test_where_all_items_are_trained_nothing_is_marked():
    users, n_items = long_tailed()
    everything = Plan(federation=FederationSettings(minimum_item_users=1))
    # The held-out items of the tail have no holder left; most items have one.
    assert protocol_cautions(everything, users, n_items, ("sampled",)) == {}


def test_ml_100k_is_not_marked(ml_100k_users):
    # A third of its candidates are never trained, and chance is .146.
    assert protocol_cautions(Plan(), ml_100k_users, 1682, ("sampled", "paper")) == {}


def test_the_table_says_so_in_heading_and_below():
    table = ComparisonTable(
        rows=(), protocols=("full", "sampled"), at=10, cautions={"sampled": "It flatters."}
    )
    assert table.headings[1:5] == [
        "full HR@10", "full NDCG@10", "sampled (!) HR@10", "sampled (!) NDCG@10"
    ]  # fmt: skip
    assert table.to_text().splitlines()[-1] == "sampled (!): It flatters."
    assert "- sampled (!): It flatters." in table.to_markdown()
    assert table.to_record()["cautions"] == {"sampled": "It flatters."}


def test_a_line_of_the_table_carries_it_too():
    sample = Sample(seed=1, rates=Rates(users=5, hr=0.9, recall=0.9, ndcg=0.5, mrr=0.1))
    row = ComparisonRow(
        method="fedmf", label="own", samples={"full": (sample,), "sampled": (sample,)}
    )
    table = ComparisonTable(
        rows=(row,), protocols=("full", "sampled"), at=10, cautions={"sampled": "It flatters."}
    )
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(line["protocol"], line["caution"]) for line in lines] == [
        ("full", ""), ("sampled", "It flatters.")
    ]  # fmt: skip


def untrained(users: int, hits: int) -> Rates:
    hr = hits / users
    return Rates(users=users, hr=hr, recall=hr, ndcg=hr, mrr=hr)


def test_a_deployed_federation_goes_by_its_untrained_model():
    sampled = Plan(evaluation=EvaluationSettings(protocol="sampled"))
    assert "gets HR@10 0.60, not 0.10" in measured_caution(sampled, untrained(1000, 600))
    assert measured_caution(sampled, untrained(1000, 146)) == ""
    # 3 of 10 may well be chance.
    assert measured_caution(sampled, untrained(10, 3)) == ""
    assert measured_caution(Plan(), untrained(1000, 600)) == ""


def test_whether_a_stopped_deployed_run_is_flattered_is_not_known():
    sampled = Plan(evaluation=EvaluationSettings(protocol="sampled"))
    assert measured_caution(sampled, None) is None
    assert measured_caution(Plan(), None) == ""


@pytest.mark.parametrize(
    ("caution", "name", "words"),
    [
        ("It flatters.", "sampled (!)", "sampled (!): It flatters."),
        ("", "sampled", "sampled"),
        (
            None,
            "sampled (?)",
            "sampled (?): whether this flatters every method is not known: ",
        ),
    ],
)
def test_a_protocol_is_named_with_its_caution(caution, name, words):
    assert marked("sampled", caution) == name
    assert explained("sampled", caution).startswith(words)
    # An older coordinator names none.
    assert marked("", caution) == explained("", caution) == ""


def test_noise_trains_every_item():
    users, n_items = long_tailed()
    plan = Plan()
    noisy = plan.model_copy(
        update={"privacy": PrivacySettings.model_construct(mechanism="laplace")}
    )
    assert protocol_cautions(noisy, users, n_items, ("sampled",)) == {}
