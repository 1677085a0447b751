"""Commands and options that sentences mention exist, and settings wherever they are."""

import re
import tomllib
from functools import cache

import pytest
from docs.pages import all_pages, blocks, inline_code, name_of
from typer._click.core import Context
from typer.main import get_command

from fedrec.cli.main import app
from fedrec.settings.explain import all_settings, section_sentences

SECTIONS = "|".join(section_sentences())
SETTING = re.compile(rf"({SECTIONS})\.[a-z_]+")
VARIABLE = re.compile(r"FEDREC_([A-Z]+)__([A-Z_]+)")
FILES = (".crt", ".csv", ".jsonl", ".key", ".md", ".pem", ".proto", ".py", ".sqlite", ".toml")


def option_names(command):
    names = {"-h", "--help", "--debug"}
    for found in command.params:
        names |= {*found.opts, *found.secondary_opts}
    return names


@cache
def command_at(path):
    """Return a command and its context by the words that call it, or None."""
    if len(path) == 1:
        command, parent = get_command(app), None
    else:
        above, parent = command_at(path[:-1])
        command = above.get_command(parent, path[-1])
    return command and (command, Context(command, info_name=path[-1], parent=parent))


def problems_of(words):
    """Return what is wrong with the words after `fedrec`."""
    path = ("fedrec",)
    command = command_at(path)[0]
    while hasattr(command, "list_commands") and words and not words[0].startswith("-"):
        name, *words = words
        # `fedrec audit SETTINGS` is a shorthand of the group itself.
        if name in ("...", "ARGUMENTS", "SETTINGS"):
            return []
        path = (*path, name)
        if command_at(path) is None:
            return [f"there is no `{' '.join(path)}`"]
        command = command_at(path)[0]
    known = option_names(command)
    used = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [f"`{' '.join(path)}` has no {name}" for name in used if name not in known]


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_commands_and_options_in_sentences_exist(page):
    codes = inline_code(page.read_text(encoding="utf-8"))
    found = [code.split()[1:] for code in codes if code.startswith("fedrec ")]
    assert [problem for words in found for problem in problems_of(words)] == []


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_settings_exist(page):
    text = page.read_text(encoding="utf-8")
    named = {code for code in inline_code(text) if SETTING.fullmatch(code)}
    named = {key for key in named if not key.endswith(FILES)}
    # Of a setting inside a table, the table.
    variables = [(section, key.partition("__")[0]) for section, key in VARIABLE.findall(text)]
    named |= {f"{section}.{key}".lower() for section, key in variables}
    for body in blocks(text, "toml"):
        sections = tomllib.loads(body)
        if "project" in sections:
            continue
        for section, values in sections.items():
            named |= {f"{section}.{key}" for key in values}
    assert named - set(all_settings()) - {"section.field"} == set()


def test_a_wrong_example_would_be_found():
    assert problems_of(["check", "run.toml", "--item", "3"]) == ["`fedrec check` has no --item"]
    assert problems_of(["keys", "make"]) == ["there is no `fedrec keys make`"]
    assert problems_of(["data", "fetch", "ml-100k", "--into", "data"]) == []
