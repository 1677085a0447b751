"""The laboratory's verbs are there in every installation, and import little before they run."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from fedrec.cli.lazy import ENTRY_POINTS
from fedrec.cli.main import VERBS

# They start processes.
pytestmark = pytest.mark.slow

HEAVY = ("torch", "numba", "numpy", "tenseal", "gmpy2", "pyarrow", "matplotlib", "grpc_health")
OURS = {
    point.name: point.value
    for point in entry_points(group=ENTRY_POINTS)
    if point.value.startswith("fedrec_lab.")
}


def test_every_verb_of_the_laboratory_has_its_place_in_the_list():
    verbs = {"simulate", "evaluate", "tune", "reproduce", "demo", "report", "runs", "audit"}
    assert verbs < OURS.keys()
    assert OURS.keys() <= VERBS.keys()


def test_each_is_found_where_a_coordinator_s_or_an_authority_s_extras_are_all():
    """Where those of clients and researchers are missing, `--help` answers all the same."""
    code = (
        "import sys\n"
        f"missing = {HEAVY}\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in missing:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from fedrec.cli.main import main\n"
        f"for name in {sorted(OURS)}:\n"
        "    try:\n"
        "        main([name, '--help'])\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: fedrec") == len(OURS)
