"""The authority's process: what it measures and imports."""

import subprocess
import sys

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.updates import UPDATES
from fedrec_authority.delivery import AuthorityEvent
from fedrec_authority.metrics import AuthorityMetrics


def test_sums_lines_and_epochs(tmp_path):
    now = 1000.0
    metrics = AuthorityMetrics(tmp_path, lambda: now)

    def value(name, **labels):
        return metrics.registry.get_sample_value(name, labels)

    assert value("fedrec_authority_sums_total", outcome="refused") == 0
    assert value("fedrec_authority_coordinator_reachable") == 0
    assert value("fedrec_authority_opened_timestamp_seconds") == 1000.0
    metrics.take(AuthorityEvent(name="coordinator found", epoch=2))
    metrics.take(AuthorityEvent(name="epoch began", epoch=2))
    now = 1100.0
    metrics.take(AuthorityEvent(name="sum revealed", round=1, seconds=0.25))
    metrics.take(AuthorityEvent(name="sum revealed", round=2, seconds=0.5))
    metrics.take(AuthorityEvent(name="reveal refused", round=3, detail="why"))
    assert value("fedrec_authority_coordinator_reachable") == 1
    assert value("fedrec_authority_key_epoch") == 2
    assert value("fedrec_authority_sums_total", outcome="opened") == 2
    assert value("fedrec_authority_sums_total", outcome="refused") == 1
    assert value("fedrec_authority_opening_duration_seconds_sum") == 0.75
    assert value("fedrec_authority_opened_timestamp_seconds") == 1100.0
    metrics.take(AuthorityEvent(name="coordinator lost"))
    assert value("fedrec_authority_coordinator_reachable") == 0
    metrics.take(AuthorityEvent(name="member admitted", client_id="0123abcd", label="hospital-a"))
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert value("fedrec_authority_events_total", event="member_admitted") == 1
    assert {label for sample in samples for label in sample.labels} == {
        "event", "outcome", "le", "version", "party",
    }  # fmt: skip


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
