"""What a user is told when a command fails, and the exit code that scripts see."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from fedrec.durable import FULL, UNUSABLE
from fedrec.errors import FedrecError, InternalError, OutputLost, SettingsError, StorageError
from fedrec.extras import not_installed, smallest_extra

INTERRUPTED = 130
EXIT_CODES: dict[int, str] = {
    0: "ok",
    1: "the run failed, or standard output cannot be written",
    2: "the command, its settings or its data cannot be used",
    3: "nobody answers at the address",
    4: "the privacy budget is spent",
    5: "refused: keys, versions or permissions do not fit",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP; a second one stops at once",
}


def report_failure(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Tell the user what happened and return the exit code.

    Args:
        error: what stopped the command.
        as_json: print one JSON object on stdout in place of sentences on stderr.
        debug: also show the traceback, on stderr.
    """
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print("Interrupted. The command can be given again.", file=sys.stderr)
        return INTERRUPTED
    known = _as_known(error)
    if isinstance(known, OutputLost) and known.reader_left:
        return known.exit_code
    if as_json:
        with suppress(OutputLost):
            print(json.dumps(failure_record(known), sort_keys=True), flush=True)
            return known.exit_code
    problems = known.problems if isinstance(known, SettingsError) else ()
    lines = [*problems, f"error [{known.code}]: {known.message}"]
    if known.remedy:
        lines.append(f"  {known.remedy}")
    print("\n".join(lines), file=sys.stderr)
    return known.exit_code


def failure_record(error: FedrecError) -> dict[str, object]:
    """Return an error as `--json` shows it."""
    return {
        "error": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "problems": list(error.problems) if isinstance(error, SettingsError) else [],
        "remedy": error.remedy,
    }


def _as_known(error: BaseException) -> FedrecError:
    if isinstance(error, FedrecError):
        return error
    if isinstance(error, ModuleNotFoundError) and smallest_extra(error.name or ""):
        return not_installed(error.name or "")
    if isinstance(error, OSError) and error.filename is not None:
        found = f"{error.filename!r} cannot be used: {error.strerror}."
        if error.errno in UNUSABLE:
            return SettingsError(
                found, remedy="Check the path, and that this user may read and write there."
            )
        if error.errno in FULL:
            return StorageError(found, remedy="Free disk space, then give the command again.")
    where = _write_incident(error)
    return InternalError(
        f"An unexpected {type(error).__name__} stopped the command; the details are in {where}.",
        remedy="Run it again with `fedrec --debug ...` to see them here, and report them.",
    )


def _write_incident(error: BaseException) -> Path | str:
    """Write the traceback, without any variables, where only this user reads it."""
    try:
        handle, name = tempfile.mkstemp(
            prefix=f"fedrec-incident-{secrets.token_hex(4)}-", suffix=".log"
        )
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return "nowhere, since the temporary folder cannot be written"
    return Path(name)
