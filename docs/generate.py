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
    "fedrec.evaluation.metrics": "What is measured, as sums.",
    "fedrec.algorithms": "The interface of algorithms, and those that there are.",
    "fedrec.updates": "What is trained and sent in place of a table.",
    "fedrec.errors": "Every error that is raised on purpose.",
    "fedrec.protection": "How sums are made that nobody reads one update of.",
    "fedrec_lab": "A federation in one process, beside what it has to beat.",
    "fedrec_lab.simulation": "A whole federation in one process.",
}
"""Whose exports the reference of Python lists."""
_NOTE = "<!-- Written by docs/generate.py; `make docs` writes it again. -->\n"

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

One TOML file holds the settings of a federation. `fedrec init` writes a first one,
`fedrec check FILE` says what it resolves to and where each value comes from, and
`fedrec check --explain KEY` prints a row of the tables below.

- A flag wins over the environment, that over the file, and the file over the default. The flag is
  `--set KEY=VALUE` or one named after the setting; the variable of `rounds.total` is
  `FEDREC_ROUNDS__TOTAL`, that of a setting inside `algorithm.base` `FEDREC_ALGORITHM__BASE__DIM`.
- Sections marked *plan* are what coordinator and clients must agree on. Their values have one
  fingerprint, which every signature covers. A client refuses a coordinator whose plan differs
  from a value that the client's own file sets.
- What decides privacy a client compares even where its file is silent; there the default counts.
  Of what is ordered it takes a stricter value: more item users, clients and summands, fewer
  maximum users, encryption in place of none, a protocol that does not leak in place of `paper`.
  The fields are {compared}.
- Sections marked *local* belong to one machine and travel nowhere.
- An unknown key, a value outside its range and a combination that cannot work are all reported
  together, each with its file and line, and nothing is started.
- Relative paths start at the folder of the settings file; those given by a flag or the
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
        "`python -m fedrec` is the same as `fedrec`. With `--json` a command prints one JSON "
        "object on stdout, an error included; logs and progress go to stderr.",
        "",
        *_listing(root, context),
        "",
        "## Shell completion",
        "",
        "Run `fedrec --install-completion` in your shell: bash, zsh, fish or PowerShell. "
        "New shells complete commands and options with Tab, and paths as ever. "
        "`fedrec --show-completion` prints the script without installing it. "
        "`_FEDREC_COMPLETE=source_bash fedrec` and `_FEDREC_COMPLETE=source_zsh fedrec` print it "
        "for a shell that you name, as for an image.",
        "",
        "## Commands and options of earlier versions",
        "",
        "They are refused with what does the same now.",
        "",
        "| earlier | now |",
        "|---|---|",
        *(f"| `{old}` | `{new}` |" for old, new in REPLACED.items()),
        "| options for reading a file, as `--separator`, of any command but `data describe` and "
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
        "SIGTERM and SIGHUP mean what Ctrl-C means, but `coordinator run` and `client serve` leave "
        "with 0 after SIGTERM. Under `nohup` SIGHUP is ignored. Processes that a command started "
        "end with it, within seconds even if it was killed.",
        "",
        "A closed stdout is refused before anything is done. If its disk is full, the command ends "
        "with one line on stderr; if its reader left, as `head` does, without a line. Without a "
        "stderr the command goes on, and its messages are lost.",
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
        "Scripts find it under `error` in the output of `--json`; people find it in brackets, as "
        "in `error [settings]: ...`. Between coordinator and client it travels in the gRPC "
        "trailer `fedrec-code`.",
        "",
        "A peer gets the *public sentence*. The full message follows only where the error is "
        "about the peer's own input (*detail: yes*); otherwise it stays in the log of the process "
        "that raised it, under the incident id that the peer got in the trailer "
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
        note = "" if number in used else " (reserved: no error of this version ends so)"
        lines.append(f"| {number} | {meaning}{note} |")
    return "\n".join(lines) + "\n"


def combinations_page() -> str:
    """Return the table of what goes together, and why the rest does not."""
    head = f"""\
{_NOTE}
# Combinations

Which update structure, protection and protocol go with which algorithm. Any choice of a row goes
with any other of the same row. Everything else is refused when settings are read, with the reason
below and the nearest combination that works. Every pair of algorithm and update structure trains
two rounds in the tests, and every protection of its row protects, adds and opens what that gives.

Numbers may contradict each other besides; `fedrec check` says so.
"""
    return f"{head}\n{combinations_markdown()}"


def python_page() -> str:
    """Return the reference of what other code may import: what the packages export."""
    lines = [
        _NOTE,
        "# Python",
        "",
        "What these packages export, with its docstrings; anything else may change without notice. "
        "`make site` puts the docstrings in place of the lines that begin with colons, and "
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
    """Return in words what an argument or option takes; nothing for a switch."""
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
        sys.exit(f"{', '.join(differing)}: not what the code says; run `make docs`.")


if __name__ == "__main__":
    main()
