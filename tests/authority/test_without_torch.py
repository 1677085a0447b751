"""The key authority runs where no torch is: `pip install 'fedrec[authority]'` does not bring it."""

import subprocess
import sys

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.updates import UPDATES

SCRIPT = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "pyarrow"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, NotInstalled())

import numpy as np
import fedrec_authority.cli.running
import fedrec_authority.opening.revealer
from fedrec.plan.schema import Plan
from fedrec.plan.layout import Layout
from fedrec.training.server_half import ServerHalf

N_ITEMS = 12
for name in sys.argv[1:]:
    algorithm, _, update = name.partition("/")
    settings = {"algorithm": {"name": algorithm}, "update": {"structure": update or "dense"}}
    plan = Plan.model_validate(settings | {"federation": {"name": "f"}})
    half = ServerHalf(plan, N_ITEMS)
    first = half.initial_shared()
    counted = np.zeros(Layout.counting(plan, N_ITEMS).length, dtype=np.int64)
    counted[-N_ITEMS:] = 20
    version = half.apply("count", 0, first, counted)
    length = half.travelling.layout("train", version).length
    after = half.apply("train", version.number, version, np.zeros(length, dtype=np.int64))
    assert after.trained == 1, name
    assert "torch" not in sys.modules, name
    print(name)
"""


@pytest.mark.slow
def test_every_algorithm_s_sums_are_applied_without_torch():
    names = [*ALGORITHMS, *(f"fedmf/{update}" for update in UPDATES)]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == names
