"""Child processes: what is known of one that ended with an error."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from fedrec.errors import Unreachable
from fedrec_lab.demo.parties import Failure, Processes

SLOW_START_SECONDS = 60.0


def test_a_killed_process_is_told_with_its_signal_and_log(tmp_path):
    with Processes(tmp_path) as processes:
        process = processes.start("client-2", "doctor")
        (tmp_path / "client-2.log").write_text("".join(f"line {n}\n" for n in range(40)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SLOW_START_SECONDS)
        (failure,) = processes.failures()
    assert failure.exit_code == -signal.SIGKILL
    seen = str(failure)
    assert "The process of client-2 was ended by signal 9 (SIGKILL)" in seen
    assert str(tmp_path / "client-2.log") in seen
    assert seen.endswith("  line 39")
    assert "line 27\n" not in seen


@pytest.mark.slow
def test_one_that_fails_is_told_with_its_exit_code(tmp_path):
    with Processes(tmp_path) as processes:
        process = processes.start("client-1", "no-such-command")
        fine = processes.start("client-3", "--version")
        process.wait(SLOW_START_SECONDS)
        fine.wait(SLOW_START_SECONDS)
        (failure,) = processes.failures()
    assert "ended with exit code 2" in str(failure)
    assert "no-such-command" in str(failure)


def test_logs_are_their_owners_whatever_the_umask(tmp_path):
    old = tmp_path / "deep" / "logs" / "old.log"
    before = os.umask(0)
    try:
        old.parent.mkdir(parents=True)
        old.touch(0o666)
        with Processes(old.parent) as processes, Processes(tmp_path / "new" / "logs") as others:
            for started, name in ((processes, "old"), (processes, "new"), (others, "new")):
                started.start(name, "--version")
    finally:
        os.umask(before)
    made = [*old.parent.iterdir(), *(tmp_path / "new").rglob("*"), old.parent, tmp_path / "new"]
    assert len(made) == 6
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_an_empty_log_is_called_empty(tmp_path):
    failure = Failure(name="x", exit_code=-99, log=tmp_path / "x.log", last_lines="")
    assert str(failure) == (
        f"The process of x was ended by signal 99. Its log {tmp_path / 'x.log'} is empty."
    )


@pytest.mark.slow
def test_one_that_does_not_start_is_told_with_its_log(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("coordinator", "no-such-command", talks=True)
        with pytest.raises(Unreachable, match="did not start") as error:
            processes.first_line("coordinator", seconds=SLOW_START_SECONDS)
    assert "no-such-command" in error.value.message
    assert str(tmp_path / "coordinator.log") in error.value.remedy


def test_leaving_ends_what_runs(tmp_path):
    with Processes(tmp_path) as processes:
        process: subprocess.Popen[str] = processes.start("client-1", "doctor")
    assert process.poll() is not None


def test_which_of_some_processes_run(tmp_path):
    with Processes(tmp_path) as processes:
        other = processes.start("ab", "coordinator", "run", "/dev/stdin")
        other.send_signal(signal.SIGSTOP)
        processes.start("a", "--version").wait(SLOW_START_SECONDS)
        assert processes.running(["a"]) == []
        assert processes.running(["a", "ab"]) == ["ab"]
        other.send_signal(signal.SIGKILL)
