"""What a CUDA device does: tests, rounds, a federation and memory, each beside the processor.

`benchmarks/on_a_device.sh` runs the steps one after the other, each with a time limit, and prints
one table at the end. Without a step all of them run; without a device each says what it would do.
FEDREC_DEVICE=cpu puts the processor in the device's place, to try the steps.

A round is everything between two versions of the model, over all users, without measuring quality,
and the second one that is timed: the first one starts libraries and counts blocks. The processor
is one process: `client.workers` divides long rounds among up to eight. For many times the users
it trains the few, and "~" marks what follows for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from device_rounds import (
    Rounds,
    free_bytes,
    made_of_ml_100k,
    processor_seconds,
    repeated,
    users_of_ml_100k,
)
from measuring import describe_device, describe_machine

TREE = Path(__file__).resolve().parents[1]
sys.path.append(str(TREE / "tests"))
DEVICE = os.environ.get("FEDREC_DEVICE", "cuda")
MEMORY_MIB = 16 if DEVICE == "cpu" else 256
"""`client.device_memory_mib` where it is compared with what was taken."""
PINNED = ("torch", "numpy", "numba", "llvmlite")


class Late(Exception):
    """A measurement that took longer than it may."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step knows.

    Attributes:
        rows: the file that takes the rows of the last table; None for none.
        times: how many times MovieLens-100K's users the largest round has.
        end: when the step has to be over, by `time.monotonic`.
    """

    rows: Path | None
    times: int
    end: float

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.end - time.monotonic()

    def note(self, what: str, *, device: str = "", processor: str = "", remark: str = "") -> None:
        """Print a row, and keep it for the last table."""
        row = {"what": what, "device": device, "processor": processor, "remark": remark}
        print(line_of(row), flush=True)
        if self.rows is not None:
            with self.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def line_of(row: dict[str, str]) -> str:
    """Return a row of the table."""
    return (
        f"{row.get('what', ''):<34} {row.get('device', ''):>12} {row.get('processor', ''):>12}  "
        f"{row.get('remark', '')}"
    ).rstrip()


def print_table(rows: Path) -> None:
    """Print the rows of all steps."""
    print(line_of({"what": "what", "device": DEVICE, "processor": "processor", "remark": "remark"}))
    for line in rows.read_text(encoding="utf-8").splitlines():
        print(line_of(json.loads(line)))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop what takes longer.

    Raises:
        Late: it did.
    """

    def stop(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, stop)
    # Again every second: what is raised while an object is being destroyed gets lost.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def rounds(step: Step) -> None:
    """Time a round of every algorithm at ML-100K's size and at many times its users."""
    from fedrec.algorithms import ALGORITHMS
    from fedrec.model.tables import table_bytes

    start_libraries()
    users, n_items = users_of_ml_100k()
    on_processor: dict[str, float] = {}
    widths: dict[str, int] = {}
    for_many = step.left * 0.4
    for place, name in enumerate(sorted(ALGORITHMS)):
        share = (step.left - for_many) / (len(ALGORITHMS) - place)
        there, here, remark = "", "", ""
        try:
            with at_most(share):
                device = Rounds(name, n_items, DEVICE, n_users=len(users))
                private = device.learner.local.initial_private(users.select(np.arange(1)))
                widths[name] = table_bytes(1, private.widths())
                seconds = device.second(users)
                there = f"{seconds:.3f} s"
                found = on_processor[name] = processor_seconds(name, users, n_items)
                here, remark = f"{found:.3f} s", f"{found / seconds:.1f} x"
        except Late:
            remark = f"{'the processor ' if there else ''}not within {share:.0f} s"
        except Exception as error:
            remark = sentence_of(error)
        step.note(f"round of {name}, {len(users)} users", device=there, processor=here,
                  remark=remark)  # fmt: skip
    # Those with little to keep for each user are quick.
    for place, name in enumerate(sorted(ALGORITHMS, key=lambda name: widths.get(name, 0))):
        share = step.left / (len(ALGORITHMS) - place)
        there, here, remark = "", "", ""
        # The processor's memory takes a tenth of the users that keep whole item tables.
        wide = widths.get(name, 0) > 32 * n_items
        times = max(1, step.times // 10) if wide else step.times
        many = repeated(users, times)
        if name in on_processor:
            here = f"~{on_processor[name] * times:.1f} s"
        kept = widths.get(name, 0) * len(many)
        if 3 * kept > free_bytes():
            remark = f"private tables of {kept >> 20} MiB do not fit the memory three times"
        else:
            try:
                with at_most(share):
                    device = Rounds(name, n_items, DEVICE, n_users=len(many))
                    device.second(users.select(np.arange(min(64, len(users)))))
                    # On a processor watching takes longer than training.
                    with nullcontext() if DEVICE == "cpu" else Meter(DEVICE) as meter:
                        seconds = device.one(many, users, times)
                    there = f"{seconds:.3f} s"
                    remarks = []
                    if name in on_processor:
                        remarks = [f"{on_processor[name] * times / seconds:.1f} x"]
                    if meter is not None:
                        remarks.append(f"at most {meter.most >> 20} MiB on the device")
                    remark = ", ".join(remarks)
            except Late:
                remark = f"not within {share:.0f} s"
            except Exception as error:
                remark = sentence_of(error)
        step.note(f"round of {name}, {len(many)} users", device=there, processor=here,
                  remark=remark)  # fmt: skip


def start_libraries() -> None:
    """Train a step on the device, so that no measurement pays for it or interrupts an import."""
    from fedrec.training.learner import OneStep

    OneStep(DEVICE).train()


def sentence_of(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


class Meter:
    """The bytes of tensors that are alive at once.

    On a CUDA device torch's allocator knows them. On a processor every operation is watched.
    """

    def __init__(self, device: str) -> None:
        from conformance.live_tensors import LiveTensors

        self._live = LiveTensors() if device == "cpu" else None
        self.most = 0

    def __enter__(self) -> Meter:
        if self._live is not None:
            self._counting = self._live.counting()
            self._counting.__enter__()
        self.restart()
        return self

    def __exit__(self, *error) -> None:
        self.restart()
        if self._live is not None:
            self._counting.__exit__(*error)

    @property
    def now(self) -> int:
        """Bytes at this moment."""
        import torch

        return self._live.now if self._live is not None else torch.cuda.memory_allocated()

    def restart(self) -> int:
        """Forget the most bytes since the last restart, and return them."""
        import torch

        if self._live is not None:
            peak, self._live.peak = self._live.peak, self._live.now
        else:
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        self.most = max(self.most, peak)
        return peak


def memory(step: Step) -> None:
    """Compare what a round takes of the device with `client.device_memory_mib` and the estimate."""
    from unittest.mock import patch

    from fedrec.algorithms import ALGORITHMS
    from fedrec.algorithms.trained import TrainedAlgorithm
    from fedrec.training.device import DeviceTables
    from fedrec.training.trainer import Trainer, block_bytes

    start_libraries()
    users, n_items = users_of_ml_100k()
    # Users of about one size, for each size is counted: on a processor every operation is watched.
    order, n_users = np.argsort(np.diff(users.train_indptr)), 8 if DEVICE == "cpu" else 256
    users = users.select(np.sort(order[(len(users) - n_users) // 2 :][:n_users]))
    train_blocks = Trainer._train_blocks
    for place, name in enumerate(sorted(ALGORITHMS)):
        share = step.left / (len(ALGORITHMS) - place)
        blocks: list[tuple[int, int, Callable[[], int]]] = []
        try:
            with at_most(share), Meter(DEVICE) as meter:
                made = Rounds(name, n_items, DEVICE, n_users=len(users), mib=MEMORY_MIB)
                learner = made.learner
                if not isinstance(learner.server.algorithm, TrainedAlgorithm):
                    continue
                if DEVICE == "cpu":
                    learner.local.accelerator, learner.local.device_bytes = None, MEMORY_MIB << 20
                    learner.local.on_device = DeviceTables(
                        learner.local.device, learner.local.device_bytes // 8
                    )

                def watched(self, chunk, samples, members, size, n, private, sums, found, *,
                            meter=meter, blocks=blocks):  # fmt: skip
                    before = meter.now
                    meter.restart()
                    done = train_blocks(
                        self, chunk, samples, members, size, n, private, sums, found
                    )
                    estimate = partial(block_bytes, self._algorithm, self._start, sums, size, n)
                    blocks.append((meter.restart() - before, n, estimate))
                    return done

                shared, private = made.counted(users), learner.local.initial_private(users)
                if DEVICE != "cpu":
                    # The first products take memory for the libraries, which stays.
                    made.play(users, shared, private)
                meter.restart()
                meter.most = 0
                with patch.object(Trainer, "_train_blocks", watched):
                    made.play(users, shared, private)
        except Late:
            step.note(f"memory of {name}", remark=f"not within {share:.0f} s")
            continue
        except Exception as error:
            step.note(f"memory of {name}", remark=sentence_of(error))
            continue
        measured, n_users, estimated = max(blocks, key=lambda block: block[0])
        estimate = estimated()
        step.note(
            f"memory of {name}, {MEMORY_MIB} MiB",
            device=f"{meter.most / 2**20:.1f} MiB",
            remark=f"largest block, {n_users} users: {measured / 2**20:.1f} MiB taken, "
            f"{estimate / 2**20:.1f} MiB estimated, {measured / estimate:.2f} x",
        )


def federation(step: Step) -> None:
    """Run a coordinator, a key authority and three clients that train on the device, under bfv."""
    from rich.console import Console
    from world.federation import prepare

    from fedrec_lab.demo.demonstration import DemoOptions
    from fedrec_lab.demo.further_runs import exported_models, run_comparison, run_federation
    from fedrec_lab.reports.run_folder import RunFolder

    plan, data = DemoOptions(protection="bfv", rounds=3).plan(), made_of_ml_100k()
    # Three clients share the device.
    os.environ["FEDREC_CLIENT__DEVICE_MEMORY_MIB"] = "2048"
    os.environ["FEDREC_CLIENT__DEVICE"] = DEVICE
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch), "device")
        workspace = prepare(folder.path, plan, data, n_clients=3)
        begun = time.perf_counter()
        view = run_federation(workspace, folder, Console(width=100))
        seconds = time.perf_counter() - begun
        models = exported_models(workspace)
        state = workspace.client_states[0]
        found = json.loads((state / "environment.json").read_text(encoding="utf-8"))
        print(f"client 1 trained on {found['arithmetic']['device']} by {found['path']}")
    lasted = [report.seconds for report in view.rounds if report.kind == "train"]
    alone = run_comparison(plan, data, lambda _: None)
    # The simulation's rounds are the processor's, without encryption and processes.
    there = view.best.test if view.best is not None else None
    step.note(
        "federation of three under bfv",
        device=f"{seconds:.1f} s",
        remark=f"rounds of {min(lasted):.2f} to {max(lasted):.2f} s; NDCG "
        f"{there.ndcg if there else float('nan'):.4f}, {alone.test.ndcg:.4f} in one process "
        f"on the processor; models {apart(alone.latest, models['latest']):.1e} apart",
    )


def apart(one, other) -> float:
    """Return how far two models are apart, relative to the size of the first."""
    pairs = [(one.tensors[name], values) for name, values in other.tensors.items()]
    away = sum(float(((own - its) ** 2).sum()) for own, its in pairs)
    return (away / sum(float((own**2).sum()) for own, _ in pairs)) ** 0.5


def tests(step: Step) -> None:
    """Run the tests that are marked `cuda`."""
    several = str(min(4, max(1, (os.cpu_count() or 1) // 2)))
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "--tb=short", "-rf"]
    # The machine's libraries may warn of what fedrec's own do not.
    command += ["-W", "default", "-p", "pytest_timeout", "-p", "xdist.plugin", "-n", several]
    command += ["--timeout=60", "tests/common/training/test_cuda.py"]
    process = subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    step.note("pytest -m cuda", remark=last.strip("= "))
    if process.wait():
        raise SystemExit(process.returncode)


def versions(step: Step) -> None:
    """Tell the machine, its versions and those that fedrec is tested with; let `doctor` look."""
    print(describe_machine())
    print(describe_device(DEVICE))
    lines = (TREE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    others = [
        f"{name} {version(name)}, not {pinned[name]}"
        for name in PINNED
        if find_spec(name) is not None and version(name).partition("+")[0] != pinned[name]
    ]
    bits = "as pinned: bits may be compared"
    if others:
        bits = f"{'; '.join(others)}: no bits are compared with other machines"
    step.note("versions", remark=bits)
    doctor = [sys.executable, "-m", "fedrec", "doctor", "--device", DEVICE]
    # It fails what the federation does not need, as other versions.
    subprocess.run(doctor, cwd=TREE, check=False)


STEPS: dict[str, Callable[[Step], None]] = {
    "versions": versions,
    "tests": tests,
    "federation": federation,
    "memory": memory,
    "rounds": rounds,
}


def main() -> None:
    """Run a step, or all of them."""
    begun = time.monotonic()

    from fedrec.errors import SettingsError
    from fedrec.training.device import choose_device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", nargs="?", choices=[*STEPS, "table"])
    parser.add_argument("--rows", type=Path, help="the file of the last table's rows")
    parser.add_argument("--times", type=int, default=100, help="of the users of MovieLens-100K")
    options = parser.parse_args()
    if options.step == "table":
        print_table(options.rows)
        return
    seconds = float(os.environ.get("SECONDS_LEFT", "480"))
    for name in [options.step] if options.step else STEPS:
        # Some seconds before a step would be stopped, it ends by itself.
        step = Step(rows=options.rows, times=options.times, end=begun + seconds - 8)
        try:
            choose_device(DEVICE)
        except SettingsError as error:
            does = (STEPS[name].__doc__ or "").splitlines()[0]
            step.note(name, remark=f"not done, no device. It would: {does}")
            print(f"{error.message} FEDREC_DEVICE=cpu tries it on the processor.")
            continue
        STEPS[name](step)


if __name__ == "__main__":
    main()
