"""What a list of runs says of each: its figures' protocol, and whether that flatters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from command import without_figures
from world.clock import FakeClock

from fedrec.evaluation.metrics import METRIC_NAMES, MetricSums
from fedrec.settings.schema import Settings
from fedrec_lab.reports.comparison_table import ComparisonTable
from fedrec_lab.reports.federation_record import RunView, record_federation
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.run_summary import summary_of

SAMPLED = Settings.model_validate(
    {"evaluation": {"protocol": "sampled"}, "rounds": {"total": 3}, "protection": {"name": "none"}}
)
FULL = SAMPLED.model_copy(
    update={"evaluation": SAMPLED.evaluation.model_copy(update={"protocol": "full"})}
)


__all__ = ["without_figures"]


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "movies", FakeClock())
    made.write_environment()
    return made


def untrained(users: int, hits: int) -> MetricSums:
    values = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    values[METRIC_NAMES.index("untrained.test.users")] = users
    values[METRIC_NAMES.index("untrained.test.hits")] = hits
    return MetricSums(values)


def recorded(
    folder: RunFolder, settings: Settings, rounds, references: MetricSums | None
) -> RunFolder:
    folder.write_settings(settings)
    view = RunView(planned=5, at=10, rounds=list(rounds), references=references)
    record_federation(folder, settings.plan, view, n_items=20, title="t", subtitle="s")
    return folder


def test_a_simulation_has_what_its_own_table_says(folder, rounds):
    folder.write_settings(SAMPLED)
    folder.write_metrics(rounds)
    assert summary_of(folder.path).caution is None
    table = ComparisonTable(rows=(), protocols=("sampled", "full"), at=10)
    folder.write_results(table)
    found = summary_of(folder.path)
    assert (found.protocol, found.caution) == ("sampled", "")
    folder.write_results(replace(table, cautions={"sampled": "It flatters."}))
    assert summary_of(folder.path).caution == "It flatters."


@pytest.mark.slow
def test_a_deployed_run_names_its_protocol_and_whether_it_flatters(folder, rounds):
    recorded(folder, SAMPLED, rounds, untrained(1000, 600))
    found = summary_of(folder.path)
    assert found.protocol == "sampled" and "gets HR@10 0.60, not 0.10" in str(found.caution)
    page = (folder.path / "report.html").read_text()
    assert "<th>sampled (!) HR@10</th>" in page
    assert "Protocol: sampled. Metrics on test at 10." in page
    assert "sampled (!): The untrained model gets HR@10 0.60" in page
    assert "validation, sampled (!), mean over users" in page


@pytest.mark.usefixtures("without_figures")
def test_a_deployed_run_that_was_stopped_cannot_know(folder, rounds):
    recorded(folder, SAMPLED, rounds[:-1], None)
    assert summary_of(folder.path).caution is None
    page = (folder.path / "report.html").read_text()
    assert "sampled (?): whether this flatters every method is not known" in page


@pytest.mark.usefixtures("without_figures")
def test_a_record_without_the_last_rounds_is_of_a_run_that_ended_early(folder, rounds):
    recorded(folder, FULL, rounds[:-2], None)
    found = summary_of(folder.path)
    assert (found.state, found.rounds, found.planned) == ("ended early", 3, 5)
    assert summary_of(recorded(folder, FULL, rounds, None).path).state == "finished"


@pytest.mark.usefixtures("without_figures")
def test_full_flatters_no_user(folder, rounds):
    recorded(folder, FULL, rounds[:-1], None)
    found = summary_of(folder.path)
    assert (found.protocol, found.caution) == ("full", "")
    page = (folder.path / "report.html").read_text()
    assert "<th>full HR@10</th>" in page and "full (" not in page
