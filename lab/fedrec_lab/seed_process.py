"""Run one seed in a separate process, which `simulate_seeds` starts.

It reads its job from stdin and reports rounds and the result on stdout, in the frames of worker
processes. It does not import the script that started the run. So the script needs no main guard and
may come from standard input.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import IO, Any

from fedrec.processes import end_with_parent, ignore_stop_signals
from fedrec.training.executors.worker_process import read_frame, write_frame


def main() -> None:
    """Run the federation of one seed."""
    ignore_stop_signals()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Other output must not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = read_frame(sys.stdin.buffer)
    if asked is not None:
        stopping = threading.Event()
        end_with_parent(asked[0]["parent"], lambda: os._exit(1))
        threading.Thread(target=_listen, args=(sys.stdin.buffer, stopping), daemon=True).start()
        # A thread still reads stdin, and the interpreter's normal end would abort because of it.
        code = 1
        try:
            _answer(*asked, answers, stopping)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _listen(pipe: IO[bytes], stopping: threading.Event) -> None:
    """Stop after the current round when told to. End if the parent process is gone."""
    while read_frame(pipe) is not None:
        stopping.set()
    os._exit(1)


def _answer(
    header: Mapping[str, Any], body: bytes, answers: IO[bytes], stopping: threading.Event
) -> None:
    # Read this late, because the job must be read without delay first.
    from fedrec.errors import FedrecError, InternalError
    from fedrec_lab.reports.round_report import RoundReport
    from fedrec_lab.simulation.seeds import SeedJob, run_seed

    def tell(report: RoundReport) -> None:
        write_frame(answers, {"report": report.to_json()})

    try:
        result = run_seed(SeedJob.from_frame(header, body), tell, stopping.is_set)
    except BrokenPipeError:
        os._exit(1)
    except Exception as error:
        if not isinstance(error, FedrecError):
            traceback.print_exc()
            error = InternalError(f"{type(error).__name__}: {error}")
        fields = {"code": error.code, "message": error.message, "remedy": error.remedy}
        write_frame(answers, {"error": fields})
    else:
        write_frame(answers, {"result": result.to_json()})


if __name__ == "__main__":
    main()
