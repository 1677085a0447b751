"""Writes the reference pages that follow from the code.

    python docs/generate.py            writes the pages named in `pages` into docs/reference
    python docs/generate.py --check    exits with 1 if a committed page differs

A test does what `--check` does. Nothing here depends on the terminal, the machine or the time.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from reference_tables import cell, combinations_markdown, settings_markdown

# typer carries its own copy of click, and names these types nowhere else.
from typer._click.core import Context
from typer.main import get_command

from fedrec import errors
from fedrec.cli.main import REPLACED, VERBS, app
from fedrec.cli.terminal import EXIT_CODES
from fedrec.plan.agreement import always_compared
from fedrec.settings.validation import PATHS

REFERENCE = Path(__file__).parent / "reference"
PACKAGES = {
    "fedrec": "The package itself.",
    "fedrec.recommender": "Answers from a model, without a federation.",
    "fedrec.data": "Interactions, catalogues and splits.",
    "fedrec.evaluation.protocols": "How held-out items are ranked.",
    "fedrec.evaluation.metrics": "Metrics, as sums over users.",
    "fedrec.algorithms": "The interface of algorithms, and the built-in ones.",
    "fedrec.updates": "Update structures: the content of an update in place of a table.",
    "fedrec.errors": "Every error that is raised on purpose.",
    "fedrec.protection": "Protections: they hide updates and reveal only sums.",
    "fedrec_lab": "A federation in one process, compared with baselines and references.",
    "fedrec_lab.simulation": "A whole federation in one process.",
}
"""The packages whose exports the reference of Python lists."""
_NOTE = "<!-- Written by docs/generate.py. To update it, run `make docs`. -->\n"

Command = Any
"""Commands and parameters of click are untyped here: typer's copy is private."""


def pages() -> dict[str, str]:
    """Return every generated page by its file name."""
    return {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "combinations.md": combinations_page(),
        "python.md": python_page(),
    }


def settings_page() -> str:
    """Return the reference of all settings."""
    paths = ", ".join(f"`{key}`" for key in sorted(PATHS))
    compared = ", ".join(f"`{key}`" for key in always_compared())
    head = f"""\
{_NOTE}
# Settings

One TOML file holds the settings of a federation. `fedrec init` writes a first one.
`fedrec check FILE` prints every value and where it comes from.
`fedrec check --explain KEY` prints a row of the tables below.

- A flag takes precedence over the environment, the environment over the file, and the file over
  the default. The flag is `--set KEY=VALUE` or is named after the setting. The environment variable
  of `rounds.total` is `FEDREC_ROUNDS__TOTAL`. That of `algorithm.base.dim` is
  `FEDREC_ALGORITHM__BASE__DIM`.
- Coordinator and clients must agree on the sections marked *plan*. Their values have one
  fingerprint, which every signature covers. A client refuses a coordinator whose plan differs
  from a value that the client's own file sets.
- A client always compares the settings that decide privacy. If its file doesn't set one, the
  default counts. It accepts a stricter value: more item users, clients and summands, fewer maximum
  users, encryption in place of none, a protocol that doesn't leak in place of `paper`. The settings
  are {compared}.
- Sections marked *local* belong to one machine. Their values are never sent.
- Unknown keys, values outside their range and impossible combinations are all reported
  together, each with its file and line, and nothing is started.
- Relative paths in the settings file start at its folder. Relative paths in a flag or in the
  environment start at the working folder. Paths are {paths}.
"""
    return f"{head}\n{settings_markdown()}"


def cli_page() -> str:
    """Return the reference of all commands."""
    root = get_command(app)
    context = Context(root, info_name="fedrec")
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines = [
        _NOTE,
        "# Commands",
        "",
        "`python -m fedrec` is the same as `fedrec`. With `--json`, a command prints one JSON "
        "object on stdout, even for an error. Logs and progress go to stderr.",
        "",
        *_listing(root, context),
        "",
        "## Shell completion",
        "",
        "Run `fedrec --install-completion` in your shell: bash, zsh, fish or PowerShell. "
        "New shells complete commands, options and paths with Tab. "
        "`fedrec --show-completion` prints the script without installing it. "
        "`_FEDREC_COMPLETE=source_bash fedrec` and `_FEDREC_COMPLETE=source_zsh fedrec` print it "
        "for that shell, for instance when you build an image.",
        "",
        "## Commands and options of earlier versions",
        "",
        "fedrec refuses them, and the error names the replacement.",
        "",
        "| earlier | now |",
        "|---|---|",
        *(f"| `{old}` | `{new}` |" for old, new in REPLACED.items()),
        "| options for reading a file, such as `--separator`, except of `data describe` and "
        "`data import` | `fedrec data describe FILE --separator ... --save`, once |",
        "| `--coordinator`, `--label` and other settings as options of `client run` | `--set "
        "client.coordinator=...` |",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *codes,
        "",
        "SIGTERM and SIGHUP have the effect of Ctrl-C, but `coordinator run` and `client serve` "
        "exit with 0 after SIGTERM. Under `nohup`, SIGHUP is ignored. If a command ends, the "
        "processes that it started end within seconds, even if the command was killed.",
        "",
        "If stdout is closed, a command refuses to start. If the disk of stdout is full, the "
        "command ends with one line on stderr. If the reader of stdout ended, as `head` does, the "
        "command ends without a message. If stderr is closed, the command continues, and its "
        "messages are lost.",
    ]
    lines += _options(root, context, heading="Options of `fedrec` itself")
    for name in root.list_commands(context):
        lines += _described(root.get_command(context, name), context, name)
    return "\n".join(lines).rstrip() + "\n"


def errors_page() -> str:
    """Return the reference of all errors."""
    tree = textwrap.dedent((errors.__doc__ or "").split("::\n", 1)[1].split("\n\n``code``")[0])
    lines = [
        _NOTE,
        "# Errors",
        "",
        "Every error that fedrec raises on purpose has a code that never changes its meaning. "
        "In the output of `--json`, it is under `error`. In text, it is in brackets, as "
        "in `error [settings]: ...`. Between coordinator and client it travels in the gRPC "
        "trailer `fedrec-code`.",
        "",
        "A peer gets the *public sentence*. If the error is about the peer's own input (*detail: "
        "yes*), the peer also gets the full message. Otherwise the message stays in the log of the "
        "process that raised it, under an incident id. The peer gets this id in the trailer "
        "`fedrec-incident`.",
        "",
        "```text",
        tree.strip("\n"),
        "```",
        "",
        "| code | what happened | public sentence | gRPC status | exit code | detail |",
        "|---|---|---|---|---|---|",
    ]
    for code, kind in errors.ERRORS.items():
        meaning = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        cells = (f"`{code}`", meaning, kind.public, f"`{kind.grpc_status}`")
        told = "yes" if kind.safe else "no"
        lines.append(f"| {' | '.join(map(cell, cells))} | {kind.exit_code} | {told} |")
    used = {kind.exit_code for kind in errors.ERRORS.values()} | {0, 130}
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    for number, meaning in EXIT_CODES.items():
        note = "" if number in used else " (reserved: no error of this version uses it)"
        lines.append(f"| {number} | {meaning}{note} |")
    return "\n".join(lines) + "\n"


def combinations_page() -> str:
    """Return the table of possible combinations, and the reasons why others aren't possible."""
    head = f"""\
{_NOTE}
# Combinations

This table shows which update structures, protections and protocols work with which algorithm. You
can combine all choices in a row. Other combinations are refused when settings are read, with the
reason below and the nearest combination that works. In the tests, every pair of algorithm and
update structure trains two rounds, and every protection of its row protects, adds and opens the
result.

Numbers can contradict each other, too. `fedrec check` reports this.
"""
    return f"{head}\n{combinations_markdown()}"


def python_page() -> str:
    """Return the reference of the public Python interface: the packages' exports."""
    lines = [
        _NOTE,
        "# Python",
        "",
        "The exports of these packages are public. Anything else may change without notice. "
        "`make site` replaces the lines that begin with colons by the docstrings, and "
        "`help(NAME)` shows them in Python.",
    ]
    for module, about in PACKAGES.items():
        lines += ["", f"## {module}", "", about]
        for name in sorted(import_module(module).__all__, key=str.lower):
            if name != "__version__":
                lines += ["", f"::: {module}.{name}"]
    return "\n".join(lines) + "\n"


def _listing(root: Command, context: Context) -> Iterator[str]:
    """Yield a table of the commands under their headings."""
    yield "| command | what it does |"
    yield "|---|---|"
    for name in root.list_commands(context):
        verb = VERBS[name]
        yield f"| [`fedrec {name}`](#fedrec-{name}) | {cell(verb.help)} |"


def _described(command: Command, parent: Context, name: str) -> Iterator[str]:
    """Yield the section of a command and those of its own commands."""
    context = Context(command, info_name=name, parent=parent)
    yield ""
    level = "##" if parent.parent is None else "###"
    yield f"{level} `{context.command_path}`"
    yield ""
    pieces = [piece.strip("{}") for piece in command.collect_usage_pieces(context)]
    yield f"    {' '.join([context.command_path, *pieces])}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield ""
        yield paragraph.replace("\n", " ")
    yield from _options(command, context)
    yield from _examples(command)
    for inner, found in getattr(command, "commands", {}).items():
        yield from _described(found, context, inner)


def _options(command: Command, context: Context, heading: str = "") -> Iterator[str]:
    rows = [_row(found, context) for found in command.params if not found.hidden]
    if not rows:
        return
    if heading:
        yield from ("", f"## {heading}")
    yield ""
    yield "| argument or option | takes | default | meaning |"
    yield "|---|---|---|---|"
    yield from rows


def _row(found: Command, context: Context) -> str:
    names = list(found.opts) + list(found.secondary_opts)
    if found.param_type_name == "argument":
        names = [(found.metavar or found.name.upper()).strip("{}")]
    default = found.default
    shown = "" if default is None or default is False or default == "" else f"`{default}`"
    if default is True:
        shown = f"`{names[0]}`"
    if found.required:
        shown = "required"
    cells = (" ".join(f"`{name}`" for name in names), _takes(found, context), shown)
    return f"| {' | '.join(cell(text) for text in (*cells, found.help or ''))} |"


def _takes(found: Command, context: Context) -> str:
    """Return in words the values of an argument or option, or nothing for a switch."""
    if getattr(found, "is_flag", False):
        return ""
    shown = str(found.display_type_rich(ctx=context)).strip("<>")
    shown = shown.removeprefix("list[").removesuffix("]").lower() if "[" in shown else shown
    words = {"str": "text", "int": "an integer", "path": "a path"}.get(shown, shown)
    if shown == "int range":
        words = f"an integer of at least {found.min}"
        if found.max is not None:
            words = f"an integer from {found.min} to {found.max}"
    elif "|" in shown:
        words = f"one of {', '.join(shown.split('|'))}"
    elif shown.isupper() or "=" in shown:
        words = f"`{shown}`"
    return f"{words}, repeatable" if getattr(found, "multiple", False) else words


def _examples(command: Command) -> Iterator[str]:
    text = (command.epilog or "").replace("Examples:", "").replace("\b", "")
    found = [re.sub(r" {2,}", "  # ", line.strip()) for line in text.splitlines() if line.strip()]
    if found:
        yield from ("", "```sh", *found, "```")


def main() -> None:
    """Write the pages, or compare them."""
    checking = "--check" in sys.argv[1:]
    differing = []
    for name, text in pages().items():
        path = REFERENCE / name
        if checking and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            differing.append(name)
        elif not checking:
            path.write_text(text, encoding="utf-8")
    if differing:
        sys.exit(f"Out of date: {', '.join(differing)}. To update, run `make docs`.")


if __name__ == "__main__":
    main()
