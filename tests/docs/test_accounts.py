"""What the pages tell to type is typed by a test, or an account says why not and what holds."""

import re

import pytest
from docs.accounts import ELSEWHERE, LANGUAGES, WEAKER, all_typed, elsewhere, weaker_of
from docs.pages import ROOT, Block, all_pages, blocks, name_of, numbered_blocks
from docs.scripts import SCRIPTS
from docs.weaker import arguments, container, extras, files, settings, target

PAGES = [name_of(page) for page in all_pages()]
SHOWN = ("text",)
"""What is printed, or drawn."""


@pytest.mark.parametrize("page", PAGES)
def test_everything_is_typed_or_accounted_for(page):
    unknown = []
    for typed in all_typed(page):
        script = SCRIPTS.get(page)
        if weaker_of(page, typed) or elsewhere(page, typed):
            continue
        runs = typed.language in ("sh", "python") or (
            script and any(typed.text.startswith(begin) for begin in script.files)
        )
        if script is None or not runs:
            unknown.append(f"{page}:{typed.line}: {typed.text.splitlines()[0]}")
    assert unknown == [], "write a script that types it, or an account of why none does"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_held_true_of_what_is_not_typed_is_true(page):
    found = [(typed, weaker_of(page, typed)) for typed in all_typed(page)]
    problems = [(typed.line, weaker.check(typed)) for typed, weaker in found if weaker]
    assert [problem for problem in problems if problem[1]] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_parsed(page):
    """Those that are typed, too: this takes no time."""
    lines = [typed for typed in all_typed(page) if typed.language in ("sh", "console")]
    called = [typed for typed in lines if re.match(r"([A-Z_]+=\S+ )*fedrec ", typed.text)]
    assert [problem for problem in map(arguments, called) if problem] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_what_it_is(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(numbered_blocks(text))
    assert {block.language for block in numbered_blocks(text)} <= {*LANGUAGES, *SHOWN}
    shown = [line for body in blocks(text, *SHOWN) for line in body.splitlines()]
    assert [line for line in shown if re.match(r"(\$ )?fedrec [a-z]", line)] == []


def test_accounts_and_scripts_name_what_is_there():
    for page in {*WEAKER, *ELSEWHERE, *SCRIPTS}:
        texts = [typed.text for typed in all_typed(page)]
        begins = [begin for weaker in WEAKER.get(page, ()) for begin in weaker.starts]
        begins += [begin for begin in ELSEWHERE.get(page, ())]
        pieces = []
        if page in SCRIPTS:
            script = SCRIPTS[page]
            named = (script.files, script.before, script.after, script.shows)
            begins += [begin for names in named for begin in names]
            pieces = list(script.instead)
        assert [it for it in begins if not any(text.startswith(it) for text in texts)] == [], page
        assert [it for it in pieces if not any(it in text for text in texts)] == [], page
    for page, tests in ELSEWHERE.items():
        for test in tests.values():
            assert page.rpartition("/")[2] in (ROOT / test).read_text(encoding="utf-8"), test


def typed_in(language, body):
    (typed,) = Block(language=language, line=1, body=body).typed
    return typed


def test_a_wrong_example_would_be_found():
    assert "No such option" in arguments(typed_in("sh", "fedrec check run.toml --item 3"))
    assert "No such command" in arguments(typed_in("sh", "fedrec keys make"))
    assert "Missing argument" in arguments(typed_in("sh", "fedrec keys backup"))
    assert "should be a valid integer" in arguments(typed_in("sh", "fedrec check --items many"))
    assert arguments(typed_in("sh", "FEDREC_X__Y=1 fedrec data fetch ml-100k | cat")) == ""
    assert "no such setting" in settings(typed_in("toml", "[rounds]\ntotals = 3\n"))
    assert "no such setting" in settings(typed_in("toml", "[parties]\nclient = 'a'\n"))
    assert "no extra all" in extras(typed_in("sh", "pip install 'fedrec[client,all]'"))
    assert "there is no" in files(typed_in("sh", "python benchmarks/bench_none.py"))
    assert "the Makefile" in target(typed_in("sh", "make tests"))
    assert "none.yaml" in container(typed_in("console", "$ docker compose -f none.yaml up"))
    wrong = "$ docker run --rm fedrec-client \\\n  client recommends client.toml"
    assert "No such command" in container(typed_in("console", wrong))


def test_a_line_goes_on_behind_a_backslash_and_ends_before_a_comment():
    body = "$ one \\\n    two   # three\n\n# four\nfive '#six'\n"
    typed = Block(language="sh", line=7, body=body).typed
    assert [(one.line, one.text) for one in typed] == [(7, "one two"), (11, "five '#six'")]
