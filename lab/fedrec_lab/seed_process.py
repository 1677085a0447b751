"""One seed's run in a process of its own, which `simulate_seeds` starts.

It hears its job on stdin and tells its rounds and its result on stdout, in the frames of worker
processes. It imports nothing of the script that began the run, so that the script needs no main
guard and may come from standard input.
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
    """Hold one seed's run."""
    ignore_stop_signals()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What anything prints is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = read_frame(sys.stdin.buffer)
    if asked is not None:
        stopping = threading.Event()
        end_with_parent(asked[0]["parent"], lambda: os._exit(1))
        threading.Thread(target=_listen, args=(sys.stdin.buffer, stopping), daemon=True).start()
        # A thread still reads stdin, at which the end of an interpreter would abort.
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
    """Stop after the round when told to; end where no one can tell anything any more."""
    while read_frame(pipe) is not None:
        stopping.set()
    os._exit(1)


def _answer(
    header: Mapping[str, Any], body: bytes, answers: IO[bytes], stopping: threading.Event
) -> None:
    # Only now: until here the job must be taken at once.
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
        said = {"code": error.code, "message": error.message, "remedy": error.remedy}
        write_frame(answers, {"error": said})
    else:
        write_frame(answers, {"result": result.to_json()})


if __name__ == "__main__":
    main()
