"""What counts as a line of code, on a text counted by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "count_lines.py"
TEXT = '''"""A module's docstring,
of two lines."""

import os  # counts


# A comment alone.
class Thing:
    size = 3
    """An attribute's docstring."""

    def name(self):
        """A function's."""
        return os.path.join(
            "a",

            """text
that is a value""",
        )
'''


def tool():
    spec = importlib.util.spec_from_file_location("count_lines", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blank_lines_comments_and_docstrings_do_not_count():
    # import, class, size, def, return, "a", two of the value, the closing bracket.
    assert tool().code_lines(TEXT) == 9


def test_folders_add_up_and_generated_code_is_left_out():
    found = tool().counted(None)
    assert found["."] == sum(found[name] for name in ("common", "server", "client", "lab"))
    assert found["common/fedrec/wire/v1"] == 0 < found["common/fedrec/wire"]
