"""The command `fedrec`: its verbs, its standard streams and its handling of errors.

A command ends when its stdout can't be written, as scripts expect. If its stderr can't be written,
it continues without messages.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, TextIO, cast

import typer
from typer.main import get_command

from fedrec.cli.lazy import LazyGroup, Verb
from fedrec.cli.terminal import EXIT_CODES, report_failure
from fedrec.errors import DataError, OutputLost, SettingsError
from fedrec.processes import interrupted_by_any
from fedrec.telemetry import SteadyStream


class _Output:
    """Standard output, for text or bytes.

    Raises:
        OutputLost: the stream can't be written.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> int:
        """Write to the stream."""
        with _report_lost_output(self._stream):
            return int(self._stream.write(text))

    def flush(self) -> None:
        """Pass on what was written."""
        with _report_lost_output(self._stream):
            self._stream.flush()

    @property
    def buffer(self) -> _Output:
        """The stream for bytes instead of text."""
        return _Output(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def own_streams() -> Iterator[None]:
    """Make a command print to streams that handle their own failures."""
    before = sys.stdout, sys.stderr
    _fill_closed()
    errors = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 (the process's own)
    sys.stdout, sys.stderr = cast(TextIO, _Output(sys.stdout)), cast(TextIO, SteadyStream(errors))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in filter(None, before):
            _forget_unwritten(stream)


def _fill_closed() -> None:
    """Occupy the descriptors of closed streams, so that files opened later don't get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def _report_lost_output(stream: Any) -> Iterator[None]:
    if stream is None:
        raise OutputLost("Standard output is closed. Redirect it, as in >/dev/null.")
    try:
        yield
    except OSError as error:
        lost = OutputLost(f"Standard output cannot be written: {error.strerror or error}.")
        lost.reader_left = error.errno == errno.EPIPE
        raise lost from error


def _forget_unwritten(stream: TextIO) -> None:
    """Let the interpreter's last flush succeed after this stream failed."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


_START, _RUN, _OPERATE = "Begin", "Run a federation", "Operate a federation"

VERBS: dict[str, Verb] = {
    "demo": Verb(
        help="See a whole federation work on this machine, in about two minutes.",
        panel=_START,
    ),
    "init": Verb(target="fedrec.cli.init:init", help="Write a first settings file.", panel=_START),
    "check": Verb(
        target="fedrec.cli.check:check",
        help="Check settings, show where each value comes from, and price the run.",
        panel=_START,
    ),
    "audit": Verb(
        help="Report what sums determine, what a coordinator could read, and what leaks.",
        panel=_START,
    ),
    "data": Verb(
        target="fedrec.cli.data:app",
        help="Fetch, import, describe and split interactions.",
        panel=_START,
    ),
    "doctor": Verb(
        target="fedrec.cli.doctor:doctor",
        help="Check that this machine has what fedrec needs.",
        panel=_START,
    ),
    "simulate": Verb(
        help="Simulate a whole federation in one process.",
        panel=_RUN,
    ),
    "tune": Verb(
        help="Try values of settings, and report the best ones on validation data.",
        panel=_RUN,
    ),
    "evaluate": Verb(
        help="Compare a federation with baselines under every evaluation protocol.",
        panel=_RUN,
    ),
    "reproduce": Verb(
        help="Run a row of a paper's table. Show published, reproduced and honest figures.",
        panel=_RUN,
    ),
    "provision": Verb(
        help="Create a kit for each party (run this on the key authority's machine).",
        panel=_RUN,
    ),
    "up": Verb(
        help="Run all parties of a set of kits on this machine, with one live view.",
        panel=_RUN,
    ),
    "keys": Verb(
        help="Create the data owners' keys, and show what key files contain.",
        panel=_RUN,
    ),
    "coordinator": Verb(
        help="Run the service that adds up encrypted updates.",
        panel=_RUN,
    ),
    "client": Verb(
        help="Train on private data in a federation, and recommend from it.",
        panel=_RUN,
    ),
    "recommend": Verb(
        help="Recommend items from a finished run, or to a client's own users.",
        panel=_RUN,
    ),
    "runs": Verb(
        help="List the runs in a folder, show one, or compare several.",
        panel=_RUN,
    ),
    "report": Verb(
        help="Rebuild a run's report, and its figures as SVG and PNG.",
        panel=_RUN,
    ),
    "status": Verb(
        target="fedrec.cli.operating:status",
        help="Show a coordinator's progress.",
        panel=_OPERATE,
    ),
    "clients": Verb(
        target="fedrec.cli.operating:clients",
        help="Show the state of each client of a coordinator.",
        panel=_OPERATE,
    ),
    "watch": Verb(
        help="Follow a coordinator's rounds as they happen.",
        panel=_OPERATE,
    ),
    "stop": Verb(
        target="fedrec.cli.operating:stop",
        help="End a coordinator's run, after the round or at once.",
        panel=_OPERATE,
    ),
}


REPLACED: dict[str, str] = {
    "audit dp": "fedrec audit SETTINGS",
    "audit indices": "fedrec audit SETTINGS --only indices",
    "audit sums": "fedrec audit SETTINGS",
    "audit wire": "fedrec audit SETTINGS --recording FOLDER",
    "client recommend": "fedrec recommend SETTINGS --user ID",
    "costs": "fedrec reproduce colr/costs",
    "costs space": "fedrec reproduce --list",
    "runs list": "fedrec runs",
    "runs show": "fedrec runs RUN",
}
"""Commands of earlier versions and their replacements."""

REPLACED_OPTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("--layout", "--columns", "--separator", "--encoding", "--quotes", "--strict"),
            *("--user-column", "--item-column", "--rating-column", "--timestamp-column"),
            *("--timestamp-format", "--minimum-rating", "--minimum-interactions"),
            "--minimum-item-interactions",
        ),
        "fedrec data describe FILE {option} ... --save",
    ),
    **{
        f"client run --{name}": f"--set client.{name.replace('-', '_')}=VALUE"
        for name in (
            *("coordinator", "authority-key", "certificate", "invitation"),
            *("device", "workers", "label"),
        )
    },
    "client run --catalogue": "--set data.catalogue=FILE",
    "runs --in": "fedrec runs FOLDER",
}
"""Options of earlier versions, some of a single command, and their replacements."""


class _Fedrec(LazyGroup):
    verbs: ClassVar[Mapping[str, Verb]] = VERBS

    def replacement(self, command: str, option: str) -> str:
        now = REPLACED_OPTIONS.get(f"{command} {option}") or REPLACED_OPTIONS.get(option, "")
        return now.format(option=option)


def _refuse_replaced(given: Sequence[str]) -> None:
    """Refuse a command of an earlier version, and name its replacement.

    Raises:
        SettingsError: the command is one of an earlier version.
    """
    words = [word for word in given if not word.startswith("-")]
    for count in (2, 1):
        command = " ".join(words[:count])
        if command in REPLACED and not Path(words[:count][-1]).exists():
            raise SettingsError(
                f"`fedrec {command}` has been replaced.", remedy=f"Run `{REPLACED[command]}`."
            )


def _epilog() -> str:
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return (
        # Click keeps the lines after this mark as they are.
        "\b\nFirst steps:\n"
        "  fedrec data fetch ml-100k --into data\n"
        "  fedrec init run.toml --data data/interactions.csv --clients 3\n"
        "  fedrec check run.toml\n"
        "  fedrec simulate run.toml"
        f"\n\n\b\nExit codes:\n{codes}"
    )


app = typer.Typer(
    name="fedrec",
    cls=_Fedrec,
    epilog=_epilog(),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedrec import __version__

        typer.echo(f"fedrec {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a recommender on data that can't be pooled. Interactions stay on each party's machine.

    Clients send protected updates. The coordinator adds them up without reading them.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with own_streams():
        sys.exit(_run(given))


def _run(given: list[str]) -> Any:
    """Run a command and return its exit code."""
    debug = "--debug" in takewhile(lambda argument: argument.startswith("-"), given)
    command = get_command(app)
    code: Any = 0
    try:
        # Detect a closed stdout before computing anything for it.
        sys.stdout.flush()
        with interrupted_by_any():
            _refuse_replaced(given)
            command.main(args=given, prog_name="fedrec")
    except SystemExit as ended:
        code = ended.code
        # typer turns it into an exit without a message.
        interrupt = getattr(ended.__context__, "__cause__", None)
        if isinstance(interrupt, KeyboardInterrupt):
            code = report_failure(interrupt, as_json=False, debug=debug)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, DataError):
            from fedrec.cli.data_options import propose_command

            propose_command(error, command, given)
        code = report_failure(error, as_json="--json" in given, debug=debug)
    try:
        sys.stdout.flush()
    except OutputLost as error:
        return code or report_failure(error, as_json=False, debug=debug)
    return code
