"""What counts as a line of code, on a text counted by hand."""

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
    # import, class, size, def, return; on lines, also "a", two of the value, the closing bracket.
    assert tool().size_of(TEXT) == (1, 5, 9)
    assert tool().size_of('"""A docstring alone."""\n') == (0, 0, 0)


def test_folders_add_up_and_generated_code_is_left_out():
    found = tool().counted(None, 4)
    packages = [found[name] for name in ("common", "server", "client", "lab")]
    assert found["all"] == tuple(map(sum, zip(*packages, strict=True)))
    assert found["common/fedrec/wire/v1"] == (0, 0, 0) < found["common/fedrec/wire"]


def test_what_has_grown_is_named_with_both_numbers(tmp_path):
    sizes = {"all": tool().Size(2, 1_050, 2_000), "common": tool().Size(2, 1_050, 2_000)}
    table = tmp_path / "size.txt"
    table.write_text(tool().table(sizes, None) + "\n")
    assert tool().grown(sizes, tool().read_table(table)) == []
    assert tool().grown(sizes | {"all": tool().Size(2, 1_051, 1_999)}, sizes) == [
        "all has 1,051 statements, but the table allows 1,050."
    ]
