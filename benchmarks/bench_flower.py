"""A round of FedMF: fedrec's simulation against a Flower simulation with a client for each user.

Both sides do the work of `bench_training_round.py`: ML-100K, dim 32, all 943 users in every round,
4 negatives for each positive, 2 local epochs of minibatches of 256, item changes divided by the
users who touched the item. Flower's side (`flower_federation.py`) is written as its documentation
does, with a ClientApp, a ServerApp and a strategy, and runs on its Ray backend with as many clients
at a time as there are cores, each on one thread. Its rounds are timed in the strategy, from the
sending of the table to the aggregated one; the start of Ray and the first round, in which
processes import torch, are left out. fedrec's rounds are timed before and after it.

Flower wants other versions of some packages than fedrec, so it is installed into a temporary
environment (flower_requirements.txt), which takes minutes and a package index that pip can reach.
Ray's messages go through its shared memory: nothing crosses a network on either side, and neither
side encrypts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from fedmf_client import BATCH, DIM, EPOCHS
from flower_environment import environment
from measuring import add_device, describe_device, describe_machine, interleaved, print_ratio
from per_client_loop import ml_100k, plan_of, round_of

from fedrec.data.splits import UserSplit
from fedrec.training.learner import Learner

HERE = Path(__file__).parent


def with_flower(folder: Path) -> Path:
    """Make an environment with Flower, which finds torch in this one; return its Python."""
    wanted = ["-r", str(HERE / "flower_requirements.txt"), f"numpy=={np.__version__}"]
    python = environment(folder, *wanted)
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = folder / "lib" / version / "site-packages" / "zz_parent.pth"
    found.write_text(f"{packages}\n", encoding="utf-8")
    return python


def flower_seconds(python: Path, users: UserSplit, learner: Learner, rounds: int) -> list[float]:
    """Return the seconds of Flower's rounds, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
        np.savez(
            data,
            indptr=users.train_indptr,
            train_items=users.train_items,
            items=shared.tensors["item_embedding"].astype(np.float32),
            vectors=private.tensors["user_embedding"],
        )
        own = {
            "PYTHONPATH": str(HERE),
            "FLWR_HOME": folder,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray gives up where a busy machine takes more than half a minute to start it.
            "RAY_agent_register_timeout_ms": "300000",
            "RAY_raylet_start_wait_time_s": "300",
        }
        done = subprocess.run(
            [python, HERE / "flower_federation.py", data, str(rounds + 1)],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds[1:]


def main() -> None:
    """Print both sides' round times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python", type=Path, help="an environment's Python that has Flower")
    add_device(parser)
    chosen = parser.parse_args()
    users, n_items = ml_100k()
    plan = plan_of({"dim": DIM, "local_epochs": EPOCHS, "batch_size": BATCH})
    learner = Learner(plan, n_items, device="cpu")
    ours = {"fedrec": round_of(plan, users, n_items, chosen.device)}
    with tempfile.TemporaryDirectory() as folder:
        python = chosen.python or with_flower(Path(folder))
        before = interleaved(ours, runs=chosen.runs)["fedrec"]
        flower = flower_seconds(python, users, learner, 2 * chosen.runs)
        after = interleaved(ours, runs=chosen.runs)["fedrec"]
    print(describe_machine())
    print(describe_device(chosen.device))
    print(f"FedMF, dim {DIM}: ML-100K, {len(users)} clients of one user each")
    print(f"fedrec on {torch.get_num_threads()} threads; Flower on Ray, {os.cpu_count()} clients")
    print_ratio("Flower", "fedrec", {"Flower": flower, "fedrec": before + after})


if __name__ == "__main__":
    main()
