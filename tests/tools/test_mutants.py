"""Drawn faults: each changes what it says it changes, and is found again where the code went."""

import ast
import importlib.util
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "mutants.py"
TEXT = '''"""A module."""


class Shop:
    def price(self, amount: int = 1) -> int:
        """Return 2 prices."""
        if not amount:
            raise ValueError(f"No {amount + 1} of it.")
        return amount * 2 - 1
'''


def tool():
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_a_text_has_these_faults():
    changes = {(one.line, one.after) for one in tool().mutants_of("data", "a.py", TEXT)}
    assert changes == {
        ("if not amount:", ""),
        ('raise ValueError(f"No {amount + 1} of it.")', "pass"),
        ("return amount * 2 - 1", "+"),
        ("return amount * 2 - 1", "3"),
        ("return amount * 2 - 1", "2"),
    }


def test_code_that_moved_is_found_again(tmp_path):
    mutants = tool()
    moved = tmp_path / "common" / "elsewhere.py"
    moved.parent.mkdir()
    moved.write_text('"""Before it."""\n\nA = 1\n\n' + TEXT)
    for one in mutants.mutants_of("data", "common/a.py", TEXT):
        path, text = mutants.place(one, tmp_path)
        assert path == moved and text != moved.read_text()
        ast.parse(text)
    assert mutants.place(mutants.Mutant(**(vars(one) | {"line": "gone"})), tmp_path) is None


def test_as_many_are_drawn_of_each_room_and_the_same_ones_again():
    mutants = tool()
    drawn = mutants.draw(1, 16)
    assert drawn == mutants.draw(1, 16)
    assert [one.room for one in drawn] == [room for room in mutants.ROOMS for _ in range(2)]
    assert all(mutants.place(one, mutants.ROOT) for one in drawn)
