"""`fedrec runs` and `fedrec report`: what folders of runs say, and their figures made again."""

import json
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from command import SMALL, sets

from fedrec_lab.comparison.runs import compare_runs
from fedrec_lab.reports.round_progress import StopRequest
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.reports.run_summary import summary_of

pytestmark = pytest.mark.slow

SETTINGS = sets(*SMALL)
FIGURES = [
    "loss", "quality-by-activity", "quality-by-bytes", "quality-by-round", "spectra",
    "spread-over-clients", "upload-sizes",
]  # fmt: skip


def simulated(fedrec, settings_file, *more):
    """Simulate without figures, which take longer than the rest; return the run's folder."""
    with patch("fedrec_lab.reports.html.why_no_figures", lambda: "Without figures."):
        outcome = fedrec("simulate", settings_file, *SETTINGS, *more)
    return Path(outcome.out.splitlines()[-1])


def stopped(fedrec, settings_file, *more):
    """Simulate as if Ctrl-C were pressed in the first round."""
    with patch.object(StopRequest, "requested", lambda self: True):
        return simulated(fedrec, settings_file, *more)


def test_a_report_is_made_again_to_the_same_bytes(fedrec, settings_file):
    run = Path(fedrec("simulate", settings_file, *SETTINGS).out.splitlines()[-1])
    page, content = run / "report.html", run / "report.json"
    before = page.read_bytes(), content.read_bytes()
    page.unlink()
    outcome = fedrec("report", run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(page)
    assert (page.read_bytes(), content.read_bytes()) == before
    files = sorted(path.name for path in (run / "figures").iterdir())
    assert files == sorted(f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg"))
    assert before[0].count(b"<figure>") == len(FIGURES)
    record = fedrec("report", run, "--json").json
    assert record["report"] == str(page) and len(record["figures"]) == 2 * len(FIGURES)

    # It opens with the result in words.
    opening, rest = page.read_text().split("<h2>", 1)
    assert "fedmf (colr), round" in opening and "reaches HR@5 0." in opening
    assert "bootstrap interval over 24 users" in opening
    order = [
        rest.index(f"{title}</h2>") for title in ("Results", "Figures", "Settings and machine")
    ]
    assert order == sorted(order)

    # What cannot be reported is told.
    (run / "report.json").write_text('{"title": 3}')
    damaged = fedrec("report", run)
    assert damaged.code == 1 and "report.json is not the content of a report" in damaged.err
    (run / "report.json").write_text("{")
    assert "is not the content of a report: Invalid JSON" in fedrec("report", run).err
    (run / "report.json").unlink()
    missing = fedrec("report", run)
    assert missing.code == 2 and "there is no report.json" in missing.err
    assert fedrec("report", settings_file.parent).code == 2


def test_runs_are_listed_the_newest_first(fedrec, settings_file, tmp_path):
    runs = tmp_path / "runs"
    whole, ended = simulated(fedrec, settings_file), stopped(fedrec, settings_file)
    # In the order of their names' times, not of what was written last.
    whole = whole.rename(runs / "one more-20260101-000000")
    ended = ended.rename(runs / "two-20260102-000000")
    other = runs / "three-20260103-000000"
    other.mkdir()
    (other / "resolved.toml").write_text("")
    (runs / "no-run").mkdir()

    found = fedrec("runs", runs, "--json").json["runs"]
    assert [Path(each["path"]).name for each in found] == [other.name, ended.name, whole.name]
    assert [each["state"] for each in found] == ["unreadable", "stopped", "finished"]
    assert "no format number" in found[0]["problem"]
    assert [each["rounds"] for each in found[1:]] == [1, 4]
    assert {each["planned"] for each in found[1:]} == {4}
    # The chosen version is the one that the run's own result table names.
    results = json.loads((whole / "results.json").read_text())
    (own,) = [row for row in results["rows"] if row["method"] == "fedmf"]
    sample = own["results"]["full"]["samples"][0]
    assert found[2]["test"] == sample["rates"]
    assert sample["chosen"] == f"round {found[2]['version']}"
    rounds = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    assert found[2]["upload_bytes"] == sum(each["vector_bytes"] for each in rounds)

    shown = fedrec("runs", runs)
    assert shown.code == 0 and "three-20260103-000000: " in shown.err
    assert fedrec("runs", tmp_path / "nowhere").code == 2
    header, _, _, last = shown.out.splitlines()
    assert header.split()[-3:] == ["protocol", "HR", "NDCG"] and " full " in last
    record = json.loads((whole / "results.json").read_text())
    record |= {"protocols": ["sampled"], "cautions": {"sampled": "It flatters."}}
    (whole / "results.json").write_text(json.dumps(record))
    settings = (whole / "resolved.toml").read_text()
    (whole / "resolved.toml").write_text(settings.replace('"full"', '"sampled"'))
    assert " sampled (!)  0." in fedrec("runs", runs).out
    assert "It flatters." in fedrec("runs", whole).out
    (whole / "resolved.toml").write_text(settings)
    (tmp_path / "empty").mkdir()
    assert "no run" in fedrec("runs", tmp_path / "empty").err

    assert f"--resume {ended}" in fedrec("runs", ended).out
    assert f"fedrec recommend '{whole}' --user ID" in fedrec("runs", whole).out
    assert "report.json" in fedrec("runs", whole, "--json").json["files"]


@pytest.mark.usefixtures("without_figures")
def test_a_killed_run_is_listed_with_the_command_that_continues_it(fedrec, settings_file, tmp_path):
    killed, states = tmp_path / "runs" / "killed-20260103-000000", []
    append = RunFolder.append_round

    def append_and_copy(self: RunFolder, report: RoundReport) -> None:
        append(self, report)
        if report.round == 2:
            states.append(summary_of(self.path).state)
            # A kill leaves the same files, and a lock that no process holds.
            shutil.copytree(self.path, killed)

    with patch.object(RunFolder, "append_round", append_and_copy):
        assert simulated(fedrec, settings_file, "--clients", 3).is_dir()
    assert states == ["under way"]
    found = fedrec("runs", killed.parent, "--json").json["runs"]
    assert [each["state"] for each in found if each["path"] == str(killed)] == ["interrupted"]
    (told,) = fedrec("runs", killed.parent).err.splitlines()
    assert told.startswith("killed-20260103-000000 was interrupted.")
    again = shlex.split(told)[shlex.split(told).index("simulate") :]
    assert again == ["simulate", f"{killed}/resolved.toml", "--clients", "3"]
    assert fedrec(*again).code == 0
    (killed / "checkpoint" / "checkpoint.json").write_text("{}")
    assert f"--resume {killed}" in fedrec("runs", killed.parent).err
    assert f"--resume {killed}" in fedrec("runs", killed).out


@pytest.mark.usefixtures("without_figures")
def test_the_command_that_resumes_a_run_has_its_flags(fedrec, settings_file):
    flags = ("--clients", 3, "--protect", *sets("client.minimum_own_item_users=2"))
    ended = stopped(fedrec, settings_file, *flags)
    told = fedrec("runs", ended.parent).err
    again = shlex.split(told)[shlex.split(told).index("simulate") :]
    assert again[2:] == ["--resume", str(ended), "--clients", "3", "--protect"]
    resumed = fedrec(*again)
    assert resumed.code == 0, resumed.err
    assert fedrec("runs", ended, "--json").json["state"] == "finished"


def test_runs_are_compared_with_the_first(fedrec, settings_file, tmp_path):
    one = simulated(fedrec, settings_file)
    two = simulated(fedrec, settings_file, *sets("algorithm.dim=8"))
    out = tmp_path / "compared"
    shown = fedrec("runs", "compare", one, two, "--out", out)
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[-1] == str(out / "report.html")
    assert ["algorithm.dim", "4", "8"] in [line.split() for line in lines]
    assert f"{one.name} minus {two.name}: HR@5 " in shown.out
    names = ("hr-by-round", "loss", "ndcg-by-bytes", "ndcg-by-round")
    figures = sorted(path.name for path in (out / "figures").iterdir())
    assert figures == [f"{name}.{ending}" for name in names for ending in ("png", "svg")]
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == len(names)
    assert f"algorithm.dim</td><td>{one.name}: 4; {two.name}: 8" in page
    curve = (out / "figures" / "ndcg-by-round.svg").read_text()
    assert one.name in curve and two.name in curve
    assert fedrec("runs", "compare", one, two, "--out", out).code == 2

    record = fedrec("runs", "compare", one, two, "--json").json
    assert record["settings"] == {"algorithm.dim": ["4", "8"]}
    means = [row["results"]["full"] for row in record["rows"]]
    for metric, found in record["differences"][two.name].items():
        expected = means[0][metric]["mean"] - means[1][metric]["mean"]
        assert found["difference"]["estimate"] == pytest.approx(expected, abs=1e-6)
        assert found["difference"]["low"] <= expected <= found["difference"]["high"]
    assert set(record["differences"][two.name]) == {"hr", "ndcg", "mrr"}

    unmeasured = shutil.copytree(two, tmp_path / "unmeasured")
    (unmeasured / "rounds.jsonl").write_text("")
    refused = fedrec("runs", "compare", one, unmeasured)
    assert refused.code == 2 and "no measured round" in refused.err

    # Python has the same.
    found = compare_runs(one, two)
    assert found.to_record() | {"report": None} == record
    assert repr(found) == "RunsComparison(2 runs, 1 settings differ)"
    # The table has bars of its own.
    assert found._repr_html_().count("<figure>") == len(names) + 1
    assert list(found.to_pandas()["label"]) == [one.name, two.name]


def test_intervals_are_only_between_the_same_users(fedrec, settings_file):
    one = simulated(fedrec, settings_file)
    settings = (one / "resolved.toml").read_text()
    assert '"full"' in settings and "\nat = 5\n" in settings
    fewer, sampled, wider = (
        shutil.copytree(one, one.with_name(name)) for name in ("fewer", "sampled", "wider")
    )
    (sampled / "resolved.toml").write_text(settings.replace('"full"', '"sampled"'))
    (wider / "resolved.toml").write_text(settings.replace("\nat = 5\n", "\nat = 7\n"))
    others = SimpleNamespace(user_ids=("a",), test_items=np.zeros(1, np.int64))
    RunFolder(fewer).write_ranks({("full", 1): np.zeros(1)}, others)
    reason = "it was measured on other users or items"
    assert compare_runs(one, fewer).without == {fewer.name: reason}
    (fewer / "ranks.parquet").unlink()
    found = compare_runs(one, fewer, sampled)
    assert found.differences == {}
    assert found.without == {
        fewer.name: f"{fewer.name} doesn't have the ranks of single users",
        sampled.name: "its protocol is sampled, not full",
    }
    assert "no interval, because its protocol is sampled" in found.to_text()
    assert found.table.protocols == ("full", "sampled")
    assert [series.label for series in found.figures[0].plot.series] == [one.name, fewer.name]
    (sampled / "ranks.parquet").write_bytes(b"no table")
    assert "ranks.parquet cannot be read" in fedrec("runs", "compare", one, sampled).err
    for words in ((one,), (one, one)):
        assert "two different runs" in fedrec("runs", "compare", *words).err
    assert "without the word compare" in fedrec("runs", one, fewer).err
    assert "different values of evaluation.at" in fedrec("runs", "compare", one, wider).err
