"""Calling the command as a user does, within the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.main import main
from fedrec.data import generate
from fedrec.data.writing import write_interactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


Fedrec = Callable[..., Outcome]
SMALL = (
    "rounds.total=2", "algorithm.dim=4", "update.rank=2", "federation.minimum_item_users=1",
    "evaluation.at=5", "client.threads=1", "client.device=cpu",
)  # fmt: skip
"""Settings of a run that takes a moment."""


def sets(*values: str) -> list[str]:
    """Return the option that sets each of them, for any command."""
    return [word for value in values for word in ("--set", value)]


@pytest.fixture
def fedrec(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedrec:
    """Run `fedrec ARGUMENTS` and return its outcome."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        code = ended.value.code
        return Outcome(
            code=code if isinstance(code, int) else 0 if code is None else 1,
            out=found.out,
            err=found.err,
        )

    return run


@pytest.fixture
def interactions_file(tmp_path: Path) -> Path:
    """A small file of planted interactions with a catalogue beside it."""
    data = generate(
        n_users=24, n_items=30, n_clusters=3, interactions_per_user=8, noise=0.1, seed=3
    )
    folder = tmp_path / "data"
    folder.mkdir()
    write_interactions(folder / "interactions.csv", data.interactions)
    data.catalogue.save(folder / "catalogue.csv")
    return folder / "interactions.csv"


@pytest.fixture
def settings_file(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> Path:
    """Settings of three clients that share a small file of interactions."""
    path = tmp_path / "run.toml"
    start = ("init", path, "--algorithm", "fedmf", "--data", interactions_file, "--clients", 3)
    assert fedrec(*start).code == 0
    return path


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures out of reports: drawing them takes longer than a small run."""
    for module in ("reports.html", "tuning.report"):
        monkeypatch.setattr(f"fedrec_lab.{module}.why_no_figures", lambda: "Without figures.")
