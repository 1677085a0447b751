"""The way of an update: what is counted of it, on ways drawn by hand, and one that is followed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "trace_update.py"
LAYERS = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["shop", "till | shelf"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["shop"]
layers = ["door", "counter"]
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("trace_update", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("above", "file", "climbs"),
    [
        ("shop/shop/counter.py", "shop/shop/door/bell.py", True),
        ("shop/shop/door/bell.py", "shop/shop/counter.py", False),
        ("till/till/drawer.py", "shop/shop/counter.py", True),
        ("till/till/drawer.py", "shelf/shelf/board.py", False),
        ("shop/shop/counter.py", "shop/shop/counter.py", False),
    ],
)
def test_a_climb_leads_into_a_layer_above(tool, tmp_path, above, file, climbs):
    (tmp_path / "pyproject.toml").write_text(LAYERS)
    assert tool.Layers.of(tmp_path).is_climb(above, file) is climbs


def test_a_return_is_into_a_file_that_was_left(tool, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text(LAYERS)
    ways = [("a.py", "one"), ("a.py", "two"), ("b.py", "three"), ("a.py", "four"), ("c.py", "five")]
    passed = [
        tool.Passed(file=f"shop/{file}", name=name, entered=place, above=None, hands_on=True)
        for place, (file, name) in enumerate(ways)
    ]
    tool.report(passed, tmp_path, ends=False)
    assert "5 functions in 3 files, 1 returns, 0 climbs" in capsys.readouterr().out


@pytest.mark.slow
def test_an_update_is_followed_from_the_client_to_the_store():
    done = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, check=True)
    update, _, total = done.stdout.partition("The sum,")
    way = [line.split()[1] for line in update.splitlines() if ".py " in line]
    assert "PlainMember.protect" in way[:2]
    assert {"SqliteStore.commit", "RunningSum.add", "CoordinatorService.SubmitUpdate"} <= {*way}
    assert "SharedModel.applied" in total
