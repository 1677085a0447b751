"""Worker processes: the bits of one process, whoever dies, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
from pathlib import Path

import numpy as np
import pytest
from conformance.histories import counted
from conformance.toys import TOYS, registered
from world.plans import params
from world.rounds import EXACT, KINDS

from fedrec.data import splits
from fedrec.errors import InternalError, StorageError, TrainingError
from fedrec.model.state import PrivateState
from fedrec.training.executors import crew, processes
from fedrec.training.executors.processes import ProcessExecutor, executor_of
from fedrec.training.executors.worker_process import WorkerProcess
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    made = executor_of(2, folder=tmp_path_factory.mktemp("shared"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def measuring_goes_out(monkeypatch):
    """Have workers measure these few users."""
    monkeypatch.setattr(processes, "SHORTEST_MEASURING_SECONDS", 0.0)


@pytest.fixture
def lone(tmp_path):
    """An executor of this test's own with one process, where a second shows nothing more."""
    made = ProcessExecutor(1, tmp_path)
    yield made
    made.close()


def ended(pid: int, *, within: float = 30.0) -> bool:
    """Wait for the end of any process."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], within)[0])
    finally:
        os.close(watched)


def learner_of(plan, workers=1, **resources):
    given = Resources(workers=workers, **resources)
    return Learner(plan, 200, device="cpu", resources=given)


def logged(capsys):
    """Return what was logged: without a command, which sends it to stderr, it goes to stdout."""
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_give_the_bits_of_one(kind, plan_of, play, same, executor):
    plan = plan_of(**KINDS[kind])
    same(play(learner_of(plan, executor)), play(learner_of(plan)))
    assert len(executor._processes.processes) == 2


@pytest.mark.parametrize("name", [toy.name for toy in TOYS])
def test_algorithms_of_others_are_found_where_they_are_imported_from(
    name, plan_of, play, same, executor
):
    # Own rows, schedules, wrappers, tensors without axes: of a module that only this path has.
    with registered():
        plan = plan_of(algorithm={"name": name}, update={"structure": "dense", "clip": 16.0})
        same(play(learner_of(plan, executor)), play(learner_of(plan)))


def test_some_users_or_none_may_train(plan_of, play, same, users, executor):
    for some in (np.arange(len(users)) % 5 == 0, np.zeros(len(users), bool)):
        learners = [learner_of(plan_of(), workers) for workers in (1, executor)]
        same(*(play(learner, participating=some) for learner in learners))


def test_parties_share_the_processes(plan_of, users, play, same, executor):
    learner = learner_of(plan_of(), executor)
    before = play(learner)
    here = executor._processes.processes
    plan = plan_of(algorithm={"dim": 4})
    same(play(learner_of(plan, executor)), play(learner_of(plan)))
    same(play(learner), before)
    assert executor._processes.processes == here


def test_tables_larger_than_memory_stay_in_files(plan_of, play, same, lone, tmp_path):
    plan = plan_of(**KINDS["pfedrec"])
    found = play(learner_of(plan, lone, scratch=tmp_path, table_bytes=1))
    kept = play(learner_of(plan))
    assert found[1].private.in_files
    same(found, kept)
    folder = lone._crew.scratch.path
    assert not list(folder.glob("*.tables")) or lone._crew._kept
    lone.close()
    assert not folder.exists()
    same(found, kept)


class Killing:
    """Kills workers as they are given tasks."""

    def __init__(self, monkeypatch, wanted, say="task"):
        self.n_tasks, self.killed = 0, []
        tell = WorkerProcess.tell

        def telling(worker, header, body=b""):
            tell(worker, header, body)
            if header["say"] == say:
                self.n_tasks += 1
                if wanted(self.n_tasks):
                    os.kill(worker.pid, signal.SIGKILL)
                    self.killed.append(worker.pid)

        monkeypatch.setattr(WorkerProcess, "tell", telling)


def test_what_a_killed_worker_did_is_done_again(plan_of, play, same, executor, monkeypatch, capsys):
    """Killed at its first task, at a later one, and between rounds."""
    learner, alone = learner_of(plan_of(), executor), play(learner_of(plan_of()))
    own = executor._processes
    with monkeypatch.context() as patched:
        killing = Killing(patched, lambda task: task in (1, 6))
        same(play(learner), alone)
    assert len(killing.killed) == 2 and len(own.processes) == 2
    assert not set(killing.killed) & set(own.processes)
    assert logged(capsys).count("worker process died") == 2
    gone = own.processes[0]
    os.kill(gone, signal.SIGKILL)
    assert ended(gone)
    same(play(learner), alone)
    assert gone not in own.processes


CORE = ("fedmf, colr", "sketch", "accelerated, candidates", "in files")


@pytest.mark.parametrize(
    "kind", params(*CORE, long=[kind for kind in KINDS | EXACT if kind not in CORE])
)
def test_workers_measure_what_one_process_does(
    kind, plan_of, users, executor, monkeypatch, tmp_path
):
    """All protocols and references, and a worker that dies while it measures."""
    found = []
    for workers in (1, executor):
        learner = Learner(
            plan_of(**(KINDS | EXACT).get(kind, {})),
            200,
            device="cpu",
            resources=Resources(workers=workers),
            also=("full", "sampled"),
            measure_withheld=True,
        )
        if workers is executor and kind == "in files":
            monkeypatch.setattr(splits, "MOST_FILE_USERS", 30)
            users = users.in_files(tmp_path)
        shared, private = counted(learner, users)
        with monkeypatch.context() as patched:
            killing = Killing(patched, lambda task: task == 3, say="measure")
            part = learner.contribute("evaluate", 2, shared, users, private)
        exact = part.vector if part.withheld is None else part.withheld
        found.append([exact, *part.also.values()])
    assert len(killing.killed) == 1
    assert all(map(np.array_equal, *found))
    assert all(sums.any() for sums in found[0])


def test_workers_that_always_die_end_the_round_and_not_the_engine(
    plan_of, play, same, executor, monkeypatch
):
    learner = learner_of(plan_of(), executor)
    with monkeypatch.context() as patched:
        killing = Killing(patched, lambda task: True)
        with pytest.raises(TrainingError, match=r"died 5 times.*exit code -9") as caught:
            play(learner)
        assert "client.workers" in caught.value.remedy
    assert executor._processes.processes == () and all(map(ended, killing.killed))
    same(play(learner), play(learner_of(plan_of())))


def test_divergence_is_told_as_in_one_process(plan_of, users, executor):
    text = []
    for workers in (1, executor):
        plan = plan_of(federation={"minimum_item_users": 4})
        learner = learner_of(plan, workers)
        shared, private = counted(learner, users)
        vectors = private.tensors["user_embedding"]
        for broken in (vectors * np.nan, vectors * np.float32(1e5)):
            with pytest.raises(TrainingError) as caught:
                learner.contribute(
                    "train", 2, shared, users, PrivateState({"user_embedding": broken})
                )
            text.append((caught.value.message, caught.value.remedy))
    assert text[:2] == text[2:]
    assert "finite" in text[0][0] and "exploded" in text[1][0]


def test_a_defect_in_a_worker_is_told_here(plan_of, play, lone, monkeypatch, capsys):
    monkeypatch.setattr(
        crew, "recipe_of", lambda _: {"module": "no_such_module", "name": "Nothing"}
    )
    with pytest.raises(InternalError, match=r"ModuleNotFoundError.*no_such_module"):
        play(learner_of(plan_of(), lone))
    assert lone.processes == ()
    assert "Traceback" in logged(capsys)


def test_a_worker_without_its_users_files_is_told(plan_of, play, lone):
    learner = Learner(plan_of(), 200, device="cpu", resources=Resources(workers=lone))
    play(learner, (2,))
    for file in lone._crew.scratch.path.glob("*.tables"):
        file.unlink()
    os.kill(lone.processes[0], signal.SIGKILL)
    with pytest.raises(StorageError, match=r"\.tables can't be read.*intact") as caught:
        play(learner, (2,))
    assert "--resume" in caught.value.remedy


def test_no_secret_reaches_a_worker(plan_of, play, lone, monkeypatch):
    # What people give programs in their environment, and unknown ones.
    for name in ("AWS_SECRET_ACCESS_KEY", "FEDREC_CLIENT__TOKEN_FILE", "GITHUB_TOKEN", "MINE"):
        monkeypatch.setenv(name, "do-not-tell")
    read, write = os.pipe()
    os.set_inheritable(write, False)
    play(learner_of(plan_of(), lone), (2,))
    for pid in lone.processes:
        place = Path(f"/proc/{pid}")
        environment = (place / "environ").read_bytes()
        assert b"do-not-tell" not in environment and b"OMP_NUM_THREADS=1" in environment
        assert b"do-not-tell" not in (place / "cmdline").read_bytes()
        held = {os.readlink(entry) for entry in (place / "fd").iterdir()}
        assert os.readlink(f"/proc/self/fd/{write}") not in held
        assert not any(entry.startswith("socket:") for entry in held)
    os.close(read)
    os.close(write)
    folder = lone._crew.scratch.path
    assert folder.stat().st_mode & 0o077 == 0


def test_a_full_disk_is_told_with_what_to_do(plan_of, play, same, lone):
    learner = learner_of(plan_of(), lone)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StorageError, match="share tables") as caught:
            play(learner, (2,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "client.workers = 1" in caught.value.remedy
    same(play(learner), play(learner_of(plan_of())))


def test_a_folder_that_is_not_there_is_told(plan_of, play, tmp_path):
    with pytest.raises(StorageError, match="gone"):
        play(learner_of(plan_of(), 2, scratch=tmp_path / "gone"))


def test_closing_leaves_no_process_and_no_file(plan_of, play, same, tmp_path):
    """Of two processes, and of those of a learner that is not closed."""
    learner = learner_of(plan_of(), 2, scratch=tmp_path)
    same(play(learner), play(learner_of(plan_of())))
    pids = learner.local.executor._processes.processes
    assert len(pids) == 2
    assert [path.name for path in tmp_path.iterdir()]
    learner.local.close()
    assert all(map(ended, pids)) and not list(tmp_path.iterdir())
    learner = learner_of(plan_of(), 2, scratch=tmp_path)
    play(learner, (2,))
    pids = learner.local.executor._processes.processes
    del learner
    gc.collect()
    assert all(map(ended, pids)) and not list(tmp_path.iterdir())


def test_folders_of_engines_that_were_killed_are_removed(lone, plan_of, play, tmp_path):
    play(learner_of(plan_of(), lone), (2,))
    abandoned = tmp_path / "fedrec-workers-killed00"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    (abandoned / "1.tables").write_bytes(bytes(100))
    half_made = tmp_path / "fedrec-workers-halfmade"
    half_made.mkdir()
    other = ProcessExecutor(1, tmp_path)
    play(learner_of(plan_of(), other), (2,))
    try:
        assert not abandoned.exists() and half_made.exists()
        assert lone._crew.scratch.path.exists() and other._crew.scratch.path.exists()
    finally:
        other.close()
