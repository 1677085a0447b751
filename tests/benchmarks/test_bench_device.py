"""The steps of a trial on a device, on the processor and as small as they come."""

import json
import os
import re
import subprocess
import time
import tomllib
from pathlib import Path

import bench_device
import numpy as np
import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.data import generate, leave_one_out

TREE = Path(__file__).parents[2]
SCRIPT = TREE / "benchmarks" / "on_a_device.sh"
LARGE = {"numba", "pyarrow", "scipy", "torch"}
"""The machine's own: with these the wheels would not be carried."""
N_USERS, N_ITEMS = 16, 40


def small(**changes):
    return generate(
        n_users=N_USERS, n_items=N_ITEMS, n_clusters=2, interactions_per_user=8, **changes
    )


def only(monkeypatch, *names):
    """Leave these algorithms to the steps."""
    monkeypatch.setattr("fedrec.algorithms.ALGORITHMS", {name: ALGORITHMS[name] for name in names})


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A step on the processor, over few users."""
    data = small()
    users = leave_one_out(data.interactions, data.catalogue)
    monkeypatch.setattr(bench_device, "DEVICE", "cpu")
    monkeypatch.setattr(bench_device, "MEMORY_MIB", 4)
    monkeypatch.setattr(bench_device, "users_of_ml_100k", lambda: (users, N_ITEMS))
    end = time.monotonic() + 200
    return bench_device.Step(rows=tmp_path / "rows.jsonl", times=3, end=end)


def rows_of(step):
    return [json.loads(line) for line in step.rows.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_every_algorithm_is_timed_at_both_sizes(step, monkeypatch):
    only(monkeypatch, "fedmf", "ease")
    bench_device.rounds(step)
    found = {row["what"]: row for row in rows_of(step)}
    assert set(found) == {
        f"round of {name}, {n} users" for name in ("fedmf", "ease") for n in (N_USERS, 3 * N_USERS)
    }
    for row in found.values():
        assert re.fullmatch(r"\d+\.\d+ s", row["device"]), row
        assert re.fullmatch(r"~?\d+\.\d+ s", row["processor"]), row
        assert re.fullmatch(r"\d+\.\d x", row["remark"]), row


@pytest.mark.slow
def test_a_blocks_memory_is_what_was_estimated(step, monkeypatch):
    # One that the trainer trains, and one that has no blocks.
    only(monkeypatch, "fedmf", "ease")
    bench_device.memory(step)
    ((row),) = rows_of(step)
    assert row["what"] == "memory of fedmf, 4 MiB"
    ratio = float(re.search(r"([\d.]+) x$", row["remark"])[1])
    assert 0.5 < ratio < 1.3


def test_what_takes_too_long_is_stopped_and_said(step, monkeypatch):
    only(monkeypatch, "fedmf")

    def wait(*_):
        raise bench_device.Late

    monkeypatch.setattr(bench_device.Rounds, "second", wait)
    bench_device.rounds(step)
    assert [row["remark"][:10] for row in rows_of(step)] == ["not within"] * 2
    with pytest.raises(bench_device.Late), bench_device.at_most(0.01):
        while True:
            pass


def test_repeated_users_are_the_same_under_other_ids():
    data = small()
    users = leave_one_out(data.interactions, data.catalogue)
    many = bench_device.repeated(users, 3)
    assert len(many) == len(set(many.user_ids)) == 3 * N_USERS
    for index in (0, N_USERS - 1, N_USERS, 3 * N_USERS - 1):
        assert np.array_equal(many.train_of(index), users.train_of(index % N_USERS))
    assert many.train_indptr[-1] == many.n_train


def test_the_table_comes_last_and_has_every_row(step, capsys):
    step.note("one", device="1 s", processor="2 s", remark="2.0 x")
    step.note("two", remark="not done")
    capsys.readouterr()
    bench_device.print_table(step.rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["what", "cpu", "processor", "remark"],
        ["one", "1", "s", "2", "s", "2.0", "x"],
        ["two", "not", "done"],
    ]


def test_without_a_device_a_step_says_what_it_would_do(capsys, monkeypatch):
    monkeypatch.setattr(bench_device, "DEVICE", "cuda:7777")
    monkeypatch.setattr("sys.argv", ["bench_device.py", "federation"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    bench_device.main()
    assert "It would: Run a coordinator, a key authority and three" in capsys.readouterr().out


def test_wheels_are_prepared_for_all_that_is_needed():
    """What a party imports is carried, but for what is too large."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(line for extra in ("server", "authority", "client") for line in extras[extra]),
    ]
    names = {re.split(r"[=><;]", line)[0].strip() for line in asked}
    carried = re.search(r"needed=\((.*?)\)", SCRIPT.read_text("utf-8"), re.DOTALL)[1].split()
    assert names - LARGE <= set(carried)
    assert not LARGE & set(carried)


def test_the_script_names_its_first_step_where_nothing_was_prepared(tmp_path):
    copy = tmp_path / "benchmarks" / SCRIPT.name
    copy.parent.mkdir()
    copy.write_bytes(SCRIPT.read_bytes())
    found = subprocess.run(
        ["bash", str(copy)],
        env=os.environ | {"OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "--prepare on a machine with a network" in found.stdout
    assert (tmp_path / "out" / "on_a_device.log").read_text("utf-8") == found.stdout
