"""Several seeds side by side: the bits of each alone, stopped together, gone on with one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from lab.simulation.runs import bits, run
from world.kits import descendants

from fedrec.errors import InternalError, SettingsError, TrainingError
from fedrec_lab.reports.run_folder import RunFolder
from fedrec_lab.simulation import record_simulation, simulate_seeds
from fedrec_lab.simulation.seeds import settings_of_seeds

pytestmark = pytest.mark.slow

SEEDS = (4, 1)


def folders_in(folder: Path, seeds=SEEDS) -> dict[int, Path]:
    made = {seed: folder / f"seed-{seed}" for seed in seeds}
    for path in made.values():
        path.mkdir(parents=True)
    return made


def test_stopped_side_by_side_and_gone_on_with_gives_the_bits_of_one_by_one(
    settings_of, data, tmp_path
):
    folders, seen = folders_in(tmp_path), []

    def note_round(seed, report):
        seen.append((seed, int(report.round)))

    stopped = seeds(
        settings_of(), folders, data, jobs=2, stop=lambda: len(seen) >= 2, on_round=note_round
    )
    assert [result.seed for result in stopped] == list(SEEDS)
    unfinished = {result.seed: result.folder for result in stopped if not result.finished}
    assert unfinished, "nothing was stopped"
    assert all((folder / "checkpoint").is_dir() for folder in unfinished.values())
    for seed, settings in settings_of_seeds(settings_of(), SEEDS).items():
        alone = run(settings, data)
        if seed in unfinished:
            go_on = {"folder": folders[seed], "on_round": partial(note_round, seed), "resume": True}
            assert bits(run(settings, data, **go_on)) == bits(alone)
        else:
            (tmp_path / "alone").mkdir()
            record_simulation(alone, RunFolder(tmp_path / "alone"))
            for name in ("users.safetensors", "model.safetensors"):
                found = [folder / name for folder in (folders[seed], tmp_path / "alone")]
                assert found[0].read_bytes() == found[1].read_bytes(), name
        assert [number for own, number in seen if own == seed] == list(range(1, 9))


def seeds(settings, folders, data, **options):
    users, catalogue = data
    return simulate_seeds(settings, folders, users=users, catalogue=catalogue, **options)


def test_no_seed_begins_once_a_stop_was_asked_for(settings_of, data, tmp_path):
    assert not seeds(settings_of(), folders_in(tmp_path), data, stop=lambda: True)


@pytest.mark.long
def test_one_run_that_diverges_stops_the_others_and_is_named(settings_of, data, tmp_path):
    settings = settings_of(algorithm={"learning_rate": 1000.0, "regularisation": 10.0})
    with pytest.raises(TrainingError, match=r"Seed 1: .*algorithm\.learning_rate"):
        seeds(settings, folders_in(tmp_path, (1,)), data)


def test_a_process_that_dies_is_named(settings_of, data, tmp_path):
    def of_seeds():
        own = descendants(os.getpid())
        return [
            each for each in own if b"seed_process" in Path(f"/proc/{each}/cmdline").read_bytes()
        ]

    def kill(seed, report):
        for process in of_seeds():
            os.kill(process, signal.SIGKILL)

    with pytest.raises(InternalError, match=r"seed 1 died with exit code -9"):
        seeds(settings_of(rounds={"total": 500}), folders_in(tmp_path, (1,)), data, on_round=kill)
    assert not of_seeds()


@pytest.mark.parametrize("given", [(), (1, 1), (-1,), (2**63,)])
def test_what_is_no_list_of_seeds_is_refused(settings_of, given):
    with pytest.raises(SettingsError, match="seed"):
        settings_of_seeds(settings_of(), given)


SCRIPT = """
from pathlib import Path
from fedrec import load_settings
from fedrec_lab.simulation import simulate_seeds
settings = load_settings(values={
    "algorithm.name": "fedals", "update.structure": "dense", "rounds.total": 1,
    "federation.minimum_item_users": 1, "data.path": "own.csv",
})
for seed in (1, 2):
    Path(str(seed)).mkdir()
results = simulate_seeds(settings, {seed: Path(str(seed)) for seed in (1, 2)}, jobs=2, n_clients=3)
print([result.seed for result in results])
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["script", "standard input"])
def test_seeds_side_by_side_need_no_main_guard(way, tmp_path):
    rows = [f"u{u},i{(7 * u + 3 * n) % 40},{n}" for u in range(30) for n in range(12)]
    (tmp_path / "own.csv").write_text("\n".join(["user,item,timestamp", *rows, ""]))
    (tmp_path / "own.py").write_text(SCRIPT)
    command = [sys.executable, "own.py"] if way == "script" else [sys.executable, "-"]
    typed = SCRIPT if way == "standard input" else None
    ended = subprocess.run(command, cwd=tmp_path, input=typed, capture_output=True, text=True)
    assert ended.stdout == "[1, 2]\n", ended.stderr
