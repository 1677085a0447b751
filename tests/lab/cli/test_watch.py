"""What `fedrec watch --record` leaves of a run that another process carried out."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedrec.wire.admin_link import RunEvent
from fedrec_lab.cli.watch import _recorded
from fedrec_lab.reports.run_summary import summary_of

BEGAN = datetime(2026, 11, 25, 10, 40, 40, tzinfo=UTC)


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_record_is_dated_by_the_start_of_the_run(tmp_path, interactions_file, capsys):
    settings = tmp_path / "run.toml"
    settings.write_text(
        f'[federation]\nname = "movies"\n[data]\npath = "{interactions_file}"\n'
        f'[output]\nruns = "{tmp_path / "runs"}"\n'
    )
    stopped = RunEvent(
        sequence=9,
        unix_seconds=BEGAN.timestamp() + 240,
        kind="run finished",
        round=0,
        fields={"reason": "the operator stopped it", "failed": False},
    )
    with _recorded(iter([stopped]), settings, BEGAN.timestamp()) as events:
        assert list(events) == [stopped]
    seen = capsys.readouterr()
    folder = Path(seen.out.splitlines()[-1])
    assert seen.err == ""
    assert folder.name == "movies-20261125-104040"
    assert summary_of(folder).started == BEGAN

    with _recorded(iter([stopped]), settings, BEGAN.timestamp(), as_json=True) as events:
        list(events)
    seen = capsys.readouterr()
    assert seen.out == "", "objects alone"
    assert Path(seen.err.splitlines()[-1]).is_dir()
