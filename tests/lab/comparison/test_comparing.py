"""One table from many measurements: what is trained how often, and going on after a stop."""

import stat

import pytest

from fedrec.algorithms import FedRAPSettings
from fedrec.errors import SettingsError, TrainingError
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED
from fedrec.updates.update import UpdateSettings
from fedrec_lab.comparison import comparing
from fedrec_lab.comparison.comparing import compare, jobs_of
from fedrec_lab.comparison.measurement import further_protocols, protocol_groups
from fedrec_lab.simulation import simulate

EVERYTHING = ("full", "sampled", "paper")


def test_paper_needs_its_own_training_only_where_negatives_are_drawn():
    assert protocol_groups(EVERYTHING, negatives=True) == (("full", "sampled"), ("paper",))
    assert protocol_groups(EVERYTHING, negatives=False) == (EVERYTHING,)
    assert protocol_groups(("paper",), negatives=True) == (("paper",),)
    assert protocol_groups(("sampled",), negatives=True) == (("sampled",),)


def test_a_simulation_measures_what_costs_no_training():
    def plan(algorithm, **evaluation):
        return Plan.model_validate(TUNED[algorithm].model_dump() | {"evaluation": evaluation})

    def further(plan, n_users=943, n_items=1682):
        return further_protocols(plan, n_users=n_users, n_items=n_items)

    assert further(plan("fedmf")) == ("sampled",)
    assert further(plan("fedmf"), n_users=1_000_000) == ()
    assert further(plan("fedmf"), n_items=99) == ()
    assert further(plan("fedmf", protocol="sampled")) == ("full",)
    assert further(plan("fedmf", protocol="paper")) == ()
    assert further(plan("fedmf", at=100)) == ()
    assert further(plan("fedals")) == ("sampled",)


def test_jobs_train_as_little_as_possible(small):
    jobs = jobs_of(small, EVERYTHING, (1, 2), ("ease", "ials", "centralised-mf"))
    assert [(job.reference, job.protocols, job.seeds) for job in jobs] == [
        ("", ("full", "sampled"), (1,)),
        ("", ("full", "sampled"), (2,)),
        ("", ("paper",), (1,)),
        ("", ("paper",), (2,)),
        ("ease", EVERYTHING, (1, 2)),
        ("ials", EVERYTHING, (1, 2)),
        ("centralised-mf", ("full", "sampled"), (1,)),
        ("centralised-mf", ("full", "sampled"), (2,)),
        ("centralised-mf", ("paper",), (1,)),
        ("centralised-mf", ("paper",), (2,)),
    ]
    assert len({job.name for job in jobs}) == len(jobs)
    assert jobs_of(small, EVERYTHING, (1,), ("centrap",)) == jobs_of(small, EVERYTHING, (1,), ())
    fedrap = small.model_copy(
        update={"algorithm": FedRAPSettings(), "update": UpdateSettings(structure="dense")}
    )
    assert [job.reference for job in jobs_of(fedrap, ("full",), (1,), ("centrap",))] == [
        "",
        "centrap",
    ]
    fedals = Settings.model_validate(TUNED["fedals"].model_dump())
    assert [job.protocols for job in jobs_of(fedals, EVERYTHING, (1,), ())] == [EVERYTHING]


def test_a_rank_that_is_always_found_is_refused(small):
    at = small.evaluation.model_copy(update={"at": 100})
    settings = small.model_copy(update={"evaluation": at})
    assert len(jobs_of(settings, ("full",), (1,), ())) == 1
    with pytest.raises(SettingsError, match="always found"):
        jobs_of(settings, ("full", "sampled"), (1,), ())
    with pytest.raises(SettingsError, match="at least one"):
        jobs_of(settings, ("full",), (), ())
    with pytest.raises(SettingsError, match="valid seed"):
        jobs_of(settings, ("full",), (2**63,), ())


@pytest.fixture(scope="module")
def data(planted):
    return dict(zip(("users", "catalogue"), planted, strict=True))


@pytest.fixture(scope="module")
def measured(small, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    more = {"protocols": EVERYTHING, "seeds": (1, 2), "references": ("ease",), "n_clients": 2}
    return folder, more, compare(small, **data, folder=folder, **more)


@pytest.mark.slow
def test_the_table_has_every_row(measured):
    _, _, result = measured
    assert result.finished
    rows = {row.method: row for row in result.table.rows}
    assert list(rows) == [
        "fedmf", "popularity", "local", "untrained", "know_nothing", "closed_formula", "ease",
        "ease-all-rows",
    ]  # fmt: skip
    for name, row in rows.items():
        protocols = {"paper"} if name == "closed_formula" else set(EVERYTHING)
        assert set(row.samples) == protocols
        for samples in row.samples.values():
            assert [sample.seed for sample in samples] == [1, 2]
            assert all(sample.rates.users == 60 for sample in samples)


def test_a_difference_has_its_interval_where_users_ranks_are_known(measured):
    """Under the protocols that chose a training's version: `full`, and `paper` by its own."""
    _, _, result = measured
    rows = {row.method: row for row in result.table.rows}
    assert {name for name, row in rows.items() if row.differences} == {
        "popularity", "ease", "ease-all-rows",
    }  # fmt: skip
    for name in ("popularity", "ease", "ease-all-rows"):
        assert set(rows[name].differences) == {"full", "paper"}
        for protocol, found in rows[name].differences.items():
            own, other = (rows[each].result(protocol).mean("ndcg") for each in ("fedmf", name))
            assert found.difference.estimate == pytest.approx(own - other, abs=1e-6)
            assert found.difference.low <= own - other <= found.difference.high
    assert "difference: NDCG@10 of fedmf (colr) minus that of the row" in result.table.to_text()


@pytest.mark.slow
def test_it_is_what_single_simulations_measure(measured, small, data):
    """`paper` trains with its own pool, the other two with one training."""
    _, _, result = measured
    own = result.table.rows[0]
    for protocol in EVERYTHING:
        for sample in own.samples[protocol]:
            changed = {
                "federation": small.federation.model_copy(update={"seed": sample.seed}),
                "evaluation": small.evaluation.model_copy(update={"protocol": protocol}),
            }
            alone = simulate(small.model_copy(update=changed), **data)
            assert sample.rates == alone.best_report.test
            assert sample.chosen == f"round {alone.best.round}"


@pytest.mark.slow
def test_what_is_measured_is_not_measured_again(measured, small, data, monkeypatch):
    folder, more, result = measured

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(comparing, "train", never)
    again = compare(small, **data, folder=folder, **more)
    assert again.table == result.table
    assert not (folder / "trainings").exists()
    # They have every user's rank.
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("parts/*")} == {0o600}
    with pytest.raises(SettingsError, match="different settings, data"):
        compare(small, **data, folder=folder, **(more | {"n_clients": 1}))


@pytest.mark.slow
def test_a_stopped_comparison_goes_on_to_the_same_table(measured, small, data, tmp_path):
    _, more, result = measured
    asked = []

    def stop():
        asked.append(None)
        return len(asked) == 4

    first = compare(small, **data, folder=tmp_path, stop=stop, **more)
    assert not first.finished
    assert list((tmp_path / "trainings").iterdir())
    second = compare(small, **data, folder=tmp_path, **more)
    assert second.finished
    assert second.table == result.table


@pytest.mark.slow
def test_a_reference_that_fails_has_a_row_that_says_so(small, data, monkeypatch):

    def fail(self, task):
        raise TrainingError("It diverged.", remedy="Lower the rate.")

    monkeypatch.setattr(comparing.REFERENCES["ease"], "measure", fail)
    found = compare(small, **data, protocols=("full",), seeds=(1,), references=("ease",))
    row = found.table.rows[-1]
    assert (row.method, row.samples, row.note) == ("ease", {}, "It diverged. Lower the rate.")
    assert found.finished
    assert "EASE: It diverged. Lower the rate." in found.table.to_text()
    assert "local" not in {row.method for row in found.table.rows}


@pytest.mark.slow
def test_without_negatives_paper_ranks_as_sampled_does(data):
    fedals = TUNED["fedals"].model_dump() | {
        "federation": {"minimum_item_users": 1, "maximum_users": 64},
        "rounds": {"total": 1},
        "client": {"device": "cpu"},
    }
    settings = Settings.model_validate(fedals)
    found = compare(settings, **data, protocols=EVERYTHING, seeds=(1,), references=())
    rows = {row.method: row for row in found.table.rows}
    assert rows["fedals"].samples["paper"] == rows["fedals"].samples["sampled"]
    assert "closed_formula" not in rows
    assert "know_nothing" not in rows


def test_a_reference_with_the_algorithms_own_name_has_rows_of_its_own(data, small, tmp_path):
    """Its part was the algorithm's, and both were one row."""
    values = small.model_dump() | {
        "algorithm": {"name": "ease"},
        "update": {"structure": "dense"},
        "rounds": {"total": 1},
    }
    found = compare(
        Settings.model_validate(values), **data, references=("ease",), budget=1, folder=tmp_path
    )
    methods = [row.method for row in found.table.rows]
    assert methods[0] == "ease"
    assert methods[-2:] == ["reference-ease", "reference-ease-all-rows"]
    assert methods.count("ease") == 1
    assert len(found.table.rows[0].samples["full"]) == 1
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {
        "ease-full-seed-1.json",
        "reference-ease-full-seed-1.json",
    }
