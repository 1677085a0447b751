"""How users are cut into tasks, and which executor a job gets."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest

from fedrec.algorithms import FedMF
from fedrec.settings.schema import ClientSettings
from fedrec.training.executors import processes
from fedrec.training.executors.executor import (
    Executor,
    Job,
    SerialExecutor,
    algorithm_from,
    can_be_made_again,
    recipe_of,
)
from fedrec.training.executors.processes import estimated_seconds, executor_of, tasks_of
from fedrec.training.executors.worker_process import read_frame, write_frame
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources


class Watching(Executor):
    """Keeps the jobs that it passes on."""

    def __init__(self):
        self.jobs: list[Job] = []

    def train(self, job):
        self.jobs.append(job)
        return SerialExecutor().train(job)

    def measure(self, job):
        return SerialExecutor().measure(job)


@pytest.fixture
def job_of(plan_of, play):
    def made(participating=None, **changes):
        watching = Watching()
        play(
            Learner(plan_of(**changes), 200, device="cpu", resources=Resources(workers=watching)),
            (2,),
            participating,
        )
        return watching.jobs[0]

    return made


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_every_user_who_trains_is_in_one_task(job_of, users, n_workers):
    some = np.arange(len(users)) % 3 > 0
    job = job_of(some)
    tasks = tasks_of(job, n_workers)
    members = np.concatenate([task.members for task in tasks])
    able = some & (job.cohort.n_positives > 0)
    assert np.array_equal(np.sort(members), np.nonzero(able)[0])
    assert all((np.diff(task.members) > 0).all() for task in tasks)
    costs = [task.cost for task in tasks]
    assert costs == sorted(costs, reverse=True)
    # Minibatches of 32 with five samples an item; blocks are of eight users with as many of them.
    for task in tasks:
        sizes = Counter(
            -(-5 * held // 32) for held in job.cohort.n_positives[task.members].tolist()
        )
        assert task.cost == sum(-(-n // 8) * size for size, n in sizes.items())
    # None is so large that the others wait for it: half a worker's part, and one block
    # of each number of steps.
    blocks = sum({-(-5 * held // 32) for held in job.cohort.n_positives[able].tolist()})
    assert max(costs) <= 1.5 * sum(costs) / (2 * n_workers) + blocks


def test_no_task_takes_more_memory_than_a_worker_has(job_of):
    job = job_of()
    levels = dict.fromkeys(task.n_steps for task in tasks_of(job, 2))
    each = {n: job.algorithm.bytes_per_user(len(job.cohort.active), n) for n in levels}
    memory = 2 * 3 * max(each.values())
    small = Job(**{name: getattr(job, name) for name in Job.__slots__} | {"memory_bytes": memory})
    for task in tasks_of(small, 2):
        assert len(task.members) * each[task.n_steps] <= memory // 2


def test_no_users_make_no_task(job_of, users):
    assert tasks_of(job_of(np.zeros(len(users), bool)), 2) == []


@pytest.mark.slow
def test_the_estimate_grows_with_users_samples_epochs_and_parameters(job_of, users):
    half = np.arange(len(users)) % 2 == 0
    one = estimated_seconds(job_of())
    parts = [estimated_seconds(job_of(some)) for some in (half, ~half)]
    assert min(parts) > 0 and sum(parts) == pytest.approx(one)
    assert estimated_seconds(job_of(algorithm={"local_epochs": 4})) == pytest.approx(2 * one)
    assert estimated_seconds(job_of(algorithm={"negatives_per_positive": 1})) < one
    assert estimated_seconds(job_of(algorithm={"batch_size": 8})) > one
    # Two epochs, five samples an item, p and q_i of 80 values each against 8, 7 ns a value.
    one, wide = (
        estimated_seconds(job_of(algorithm={"batch_size": 1000, "dim": dim})) for dim in (8, 80)
    )
    held = int(job_of().cohort.n_positives.sum())
    assert wide - one == pytest.approx(2 * 5 * held * 144 * 7e-9)


@pytest.mark.slow
def test_auto_takes_processes_for_long_rounds_only(job_of, monkeypatch):
    monkeypatch.setattr(processes, "_processors", lambda threads: threads or 2)
    executor, job = executor_of("auto"), job_of()
    asked = []
    monkeypatch.setattr(
        processes.ProcessExecutor, "train", lambda self, job: asked.append(self.n_workers)
    )
    executor.train(job)
    assert asked == []
    monkeypatch.setattr(processes, "LONG_ROUND_SECONDS", estimated_seconds(job) / 2)
    executor_of("auto", threads=3).train(job)
    assert asked == [3]
    # One processor gains nothing; a number is taken at its word.
    assert isinstance(executor_of("auto", threads=1), SerialExecutor)
    assert isinstance(executor_of(1), SerialExecutor)
    executor_of(2, threads=1).train(job)
    assert asked == [3, 2]


@pytest.mark.parametrize(
    ("quota", "threads", "found"),
    [
        ("300000 100000", 0, 3),
        ("50000 100000", 0, 1),
        ("max 100000", 0, 8),
        ("max 100000", 12, 12),
        ("max 100000", 2, 2),
        (None, 0, 8),
    ],
)
def test_auto_takes_what_container_and_threads_allow(quota, threads, found, tmp_path, monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(processes, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert processes._processors(threads) == found


def test_an_exact_solution_stays_in_this_process(plan_of, play, same):
    plan = plan_of(algorithm={"name": "fedals", "dim": 8}, update={"structure": "dense"})
    learner = Learner(plan, 200, device="cpu", resources=Resources(workers=2))
    same(play(learner, (2,)), play(Learner(plan, 200, device="cpu"), (2,)))
    assert learner.local.executor._processes.processes == ()


def test_compiled_code_stays_in_this_process(plan_of, play, same):
    plan = plan_of(training={"accelerated": True})
    learner = Learner(plan, 200, device="cpu", resources=Resources(workers=2))
    assert learner.local.accelerator is not None
    same(play(learner, (2,)), play(Learner(plan, 200, device="cpu"), (2,)))
    assert learner.local.executor._processes.processes == ()


def test_an_algorithm_is_made_again_from_its_recipe(plan_of):
    first = Learner(plan_of(update={"structure": "scolr"}), 200, device="cpu").server.algorithm
    again = algorithm_from(recipe_of(first))
    assert type(again) is type(first)
    assert (again.settings, again.shapes) == (first.settings, first.shapes)
    assert (again.shapes.n_items, again.shapes.seed, again.shapes.n_rounds) == (200, 5, 2)


def test_a_class_that_no_other_process_can_import_stays_here(plan_of):
    plan = plan_of()
    first = Learner(plan, 200, device="cpu").server.algorithm

    class Cell(FedMF):
        """As a notebook's cell, or a test, has it."""

    assert can_be_made_again(first)
    first.__class__ = Cell
    assert not can_be_made_again(first)


def test_frames_come_back_and_a_torn_one_is_the_end():
    pipe = io.BytesIO()
    write_frame(pipe, {"say": "task", "n_steps": 4}, bytes(range(100)))
    write_frame(pipe, {"say": "end"})
    raw = pipe.getvalue()
    pipe.seek(0)
    assert read_frame(pipe) == ({"say": "task", "n_steps": 4}, bytes(range(100)))
    assert read_frame(pipe) == ({"say": "end"}, b"")
    assert read_frame(pipe) is None
    for length in (5, 20, 60):
        assert read_frame(io.BytesIO(raw[:length])) is None


def test_the_setting_is_auto_or_a_number_of_processes():
    assert ClientSettings().workers == "auto"
    assert ClientSettings(workers=3).workers == 3
    for wrong in (0, -1, "many", 1.5, True):
        with pytest.raises(ValueError):
            ClientSettings.model_validate({"workers": wrong}, strict=True)
