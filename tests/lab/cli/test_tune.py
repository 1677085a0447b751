"""`fedrec tune`: settings side by side on validation."""

import pytest
from command import sets

FLAGS = sets(
    "rounds.total=3", "algorithm.dim=4", "federation.minimum_item_users=1", "client.threads=1"
)


@pytest.fixture
def settings_file(fedrec, tmp_path, interactions_file):
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--data", interactions_file, "--clients", 3).code == 0
    return path


@pytest.mark.slow
def test_the_best_settings_are_printed_as_the_file_takes_them(fedrec, settings_file):
    flattened = ["--set", "algorithm.regularisation=100000", *FLAGS]
    asked = ["--try", "algorithm.regularisation=10,100000"]
    outcome = fedrec("tune", settings_file, *asked, *flattened)
    assert outcome.code == 0, outcome.err
    assert "as in the file" in outcome.out
    assert "popularity" in outcome.out
    # The second of the two is the file's own, and is not trained again.
    assert outcome.err.count("NDCG") == 2
    assert outcome.out.splitlines()[-2:] == ["[algorithm]", "regularisation = 10"]
    found = fedrec("tune", settings_file, *asked, *flattened, "--json").json
    assert [trial["values"] for trial in found["trials"]] == [
        {"algorithm.regularisation": "10"}, {},
    ]  # fmt: skip
    assert found["trials"][0]["rates"]["ndcg"] > found["trials"][1]["rates"]["ndcg"]


@pytest.mark.slow
def test_the_grid_of_fedals_needs_no_flag(fedrec, settings_file):
    found = fedrec("tune", settings_file, *FLAGS, "--json").json
    assert len(found["trials"]) == 6
    ndcg = [trial["rates"]["ndcg"] for trial in found["trials"]]
    assert ndcg == sorted(ndcg, reverse=True)
    assert found["above_popularity"] == (ndcg[0] > found["popularity"]["ndcg"])


def test_all_values_are_checked_before_anything_is_trained(fedrec, settings_file):
    outcome = fedrec("tune", settings_file, "--try", "algorithm.alpha=5,-1", *FLAGS)
    assert outcome.code == 2
    assert "algorithm.alpha = -1.0" in outcome.err
    assert "NDCG" not in outcome.err
