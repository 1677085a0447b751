"""The command as a whole: what it imports, its exit codes, and how it fails."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from fedrec import __version__
from fedrec.cli import terminal
from fedrec.cli.main import REPLACED, VERBS, app
from fedrec.cli.terminal import EXIT_CODES, print_table, report_failure
from fedrec.errors import ERRORS, FedrecError
from fedrec.extras import install_command

HEAVY = ("torch", "numpy", "tenseal", "grpc", "pyarrow", "structlog", "matplotlib")


def run_python(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], (*HEAVY, "pydantic", "fedrec.plan.schema", "fedrec.settings.schema")),
        (["--version"], (*HEAVY, "pydantic", "rich")),
        # typer itself takes pydantic to show the types of options.
        (["check", "--help"], HEAVY),
        (["simulate", "--help"], HEAVY),
        (["keys", "rotate", "--help"], HEAVY),
    ],
)
def test_help_imports_nothing_heavy(arguments, unwanted):
    code = (
        "import sys\n"
        "from fedrec.cli.main import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        f"print('loaded', [name for name in {unwanted} if name in sys.modules])\n"
    )
    assert run_python(code).splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("name", sorted(VERBS.keys() - {"keys", "coordinator", "client"}))
def test_every_verb_has_help_with_examples(fedrec, name):
    outcome = fedrec(name, "--help")
    assert outcome.code == 0
    assert "Examples:" in outcome.out


def test_help_documents_verbs_and_exit_codes(fedrec):
    shown = fedrec("--help").out
    for name in (*VERBS, "coordinator", "client"):
        assert re.search(rf"^  {name}\s", shown, re.MULTILINE), name
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^\s+{code}\s+{re.escape(meaning)}", shown, re.MULTILINE)


def test_every_error_has_a_documented_exit_code():
    assert {kind.exit_code for kind in ERRORS.values()} <= set(EXIT_CODES)


def test_version(fedrec):
    assert fedrec("--version").out == f"fedrec {__version__}\n"


@pytest.mark.slow
def test_python_m_fedrec():
    finished = subprocess.run(
        [sys.executable, "-m", "fedrec", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (finished.returncode, finished.stdout) == (0, f"fedrec {__version__}\n")


def test_a_misspelt_verb_is_answered_with_the_nearest(fedrec):
    outcome = fedrec("chek")
    assert outcome.code == 2
    assert "Did you mean 'check'?" in outcome.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("export", "'client export'"),
        ("split", "'data split'"),
        ("run", "'keys authority run', 'coordinator run', 'client run'"),
    ],
)
def test_a_verb_of_another_is_answered_with_both(fedrec, typed, meant):
    outcome = fedrec(typed)
    assert outcome.code == 2
    assert f"No such command '{typed}'. Did you mean {meant}?" in outcome.err


@pytest.mark.slow
def test_no_colour_where_no_terminal_is(fedrec, tmp_path):
    assert "\x1b" not in fedrec("doctor").out


def add_verb(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `fedrec doctor` raise."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("fedrec.cli.doctor._CHECKS", ())
    monkeypatch.setattr("fedrec.cli.doctor.examine", broken)


@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_an_error_ends_with_its_exit_code(fedrec, monkeypatch, kind):
    add_verb(monkeypatch, ERRORS[kind]("What was found.", remedy="What to do."))
    outcome = fedrec("doctor")
    assert outcome.code == ERRORS[kind].exit_code
    assert outcome.err == f"error [{kind}]: What was found.\n  What to do.\n"
    assert outcome.out == ""


def test_an_error_is_one_object_with_json(fedrec, tmp_path):
    (tmp_path / "run.toml").write_text("[rounds]\ntotla = 1\ntotal = 0\n")
    outcome = fedrec("check", tmp_path / "run.toml", "--json")
    assert outcome.code == 2
    assert set(outcome.json) == {"error", "exit_code", "message", "problems", "remedy"}
    assert outcome.json["error"] == "settings"
    assert len(outcome.json["problems"]) == 2
    assert outcome.err == ""


def test_problems_come_before_the_sentence_that_nothing_was_started(fedrec, tmp_path):
    (tmp_path / "run.toml").write_text("[rounds]\ntotla = 1\n[update]\nrank = 64\n")
    lines = fedrec("check", tmp_path / "run.toml").err.splitlines()
    assert "run.toml:2: rounds.totla" in lines[0]
    assert "run.toml:4: update.rank" in lines[1]
    assert lines[2].endswith("2 problems, nothing was started.")


def test_a_missing_package_names_the_extra(fedrec, monkeypatch):
    add_verb(monkeypatch, ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"))
    outcome = fedrec("doctor")
    assert outcome.code == 2
    assert "needs torch, which is not installed" in outcome.err
    assert install_command("client") in outcome.err


def test_the_unexpected_is_one_sentence_and_an_incident(fedrec, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    add_verb(monkeypatch, ZeroDivisionError("boom"))
    outcome = fedrec("doctor")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    (log,) = tmp_path.glob("fedrec-incident-*.log")
    assert str(log) in outcome.err
    assert log.stat().st_mode & 0o077 == 0
    assert "ZeroDivisionError: boom" in log.read_text()
    assert "Traceback" in fedrec("--debug", "doctor").err


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (errno.EROFS, 2, "settings"),
        (errno.EACCES, 2, "settings"),
        (errno.EISDIR, 2, "settings"),
        (errno.ENOSPC, 1, "storage"),
        (errno.EIO, 1, "internal"),
    ],
)
def test_what_the_machine_refuses_is_no_defect(fedrec, monkeypatch, tmp_path, number, code, word):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    add_verb(monkeypatch, OSError(number, os.strerror(number), "/there/it.toml"))
    outcome = fedrec("doctor")
    assert outcome.code == code
    assert outcome.err.startswith(f"error [{word}]: ")
    assert len(list(tmp_path.glob("fedrec-incident-*"))) == (word == "internal")
    if word != "internal":
        assert f"'/there/it.toml' cannot be used: {os.strerror(number)}." in outcome.err


def test_ctrl_c_ends_with_130(fedrec, monkeypatch):
    add_verb(monkeypatch, KeyboardInterrupt())
    assert fedrec("doctor").code == 130
    assert report_failure(KeyboardInterrupt(), as_json=False, debug=False) == 130


def test_a_failure_without_remedy_is_one_line(capsys):
    report_failure(FedrecError("Something."), as_json=False, debug=False)
    assert capsys.readouterr().err == "error [error]: Something.\n"
    report_failure(FedrecError("Something."), as_json=True, debug=False)
    assert json.loads(capsys.readouterr().out)["remedy"] == ""


def test_text_of_another_party_does_not_control_the_terminal(capsys):
    print_table([("1", "Film\x1b]0;title\x07\r\u202e"), ("2", "two\nlines")])
    assert capsys.readouterr().out == "1  Film ]0;title\n2  two\n   lines\n"


@pytest.mark.parametrize("width", [24, 60])
def test_a_narrow_terminal_shows_every_column(capsys, monkeypatch, width):
    monkeypatch.setattr(terminal, "new_console", lambda: Console(force_terminal=True, width=width))
    headers = ("run", "state", "what", "rounds", "protocol", "HR", "NDCG")
    row = ("films-20261127-120000", "finished", "ease", "3 of 3", "full", "0.52", "0.31")
    print_table([row], headers=headers)
    shown = capsys.readouterr().out
    assert [word for word in (*row[1:], *headers) if word not in shown] == []


def walk(command, words=()):
    """Yield the words and the parameters of every command that does something."""
    context = command.context_class(command, info_name="fedrec")
    inner = command.list_commands(context) if hasattr(command, "list_commands") else ()
    for name in inner:
        yield from walk(command.get_command(context, name), (*words, name))
    if not inner:
        yield words, command.params


COMMANDS = dict(walk(get_command(app)))


def test_commands_and_options_stay_few():
    options = [each for found in COMMANDS.values() for each in found if each.opts[0][0] == "-"]
    assert len(COMMANDS) <= 44
    # The last ones are `--json` of `coordinator run` and `client serve`.
    assert len(options) <= 277


def test_every_command_can_print_its_result_as_json():
    for words, options in COMMANDS.items():
        assert any("--json" in option.opts for option in options), words


def test_help_cuts_nothing_and_names_types_as_words(fedrec, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    groups = {words[:count] for words in COMMANDS for count in range(len(words))}
    for words in (*COMMANDS, *groups):
        shown = fedrec(*words, "--help").out
        assert max(map(len, shown.splitlines())) <= 80 or "Examples:" in shown, words
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown
        assert not re.search(
            r"\w\.\.\.$|<(?!time>|port>)\w", shown.partition("\n")[2], re.MULTILINE
        ), words


@pytest.mark.parametrize("earlier", REPLACED)
def test_an_earlier_command_is_answered_with_what_does_the_same(fedrec, earlier):
    for rest in ((), ("x.toml", "--json")):
        refused = fedrec(*earlier.split(), *rest)
        assert refused.code == 2
        assert f"Run `{REPLACED[earlier]}`." in refused.err + refused.out
    words = REPLACED[earlier].split()[1:]
    assert any(tuple(words[:count]) in COMMANDS for count in (1, 2))


def test_a_setting_of_a_client_that_was_an_option_names_it(fedrec):
    refused = fedrec("client", "run", "x.toml", "--authority-key", "a.json")
    assert refused.code == 2
    assert "`fedrec client run` no longer has --authority-key." in refused.err
    assert "Use `--set client.authority_key=VALUE`." in refused.err


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("fedrec simu", {"simulate"}), ("fedrec keys ro", {"rotate", "roster"}),
     ("fedrec simulate --se", {"--seeds", "--set"})],
)  # fmt: skip
def test_words_are_completed_in_bash_and_zsh(fedrec, monkeypatch, typed, completed):
    monkeypatch.setenv("_FEDREC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert set(fedrec().out.split()) == completed
    monkeypatch.setenv("_FEDREC_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
    assert set(re.findall(r'"([a-z-]+)":"', fedrec().out)) == completed


@pytest.mark.slow
def test_a_shell_takes_what_completion_prints():
    script = (
        'eval "$(_FEDREC_COMPLETE=source_bash fedrec)"; COMP_WORDS=(fedrec simu); COMP_CWORD=1; '
        '_fedrec_completion fedrec; echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.stdout == "simulate\n", done.stderr
