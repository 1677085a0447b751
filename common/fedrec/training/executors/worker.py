"""A worker process: `python -m fedrec.training.executors.worker`, started by `ProcessExecutor`.

It reads frames from stdin, answers on stdout, and trains one task at a time on one thread. It
receives the algorithm, the round's model and users' tables, but no key, token or address. When its
executor is gone, it removes the shared folder and ends, even in the middle of a task.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
from typing import IO, Any

from fedrec.processes import end_with_parent, ignore_stop_signals
from fedrec.training.executors.worker_process import read_frame, write_frame

Frame = tuple[dict[str, Any], bytes]


def main() -> None:
    """Work until the executor ends this process, or is gone."""
    ignore_stop_signals()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Printed text must not mix with answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    hello = read_frame(sys.stdin.buffer)
    if hello is None:
        return
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    folder = hello[0]["folder"]
    # A process forked by the executor may hold the pipe open.
    end_with_parent(hello[0]["parent"], lambda: _abandon(folder))
    threading.Thread(target=_listen, args=(sys.stdin.buffer, frames, folder), daemon=True).start()
    try:
        _work(frames, answers)
    except BrokenPipeError:
        _abandon(folder)


def _listen(pipe: IO[bytes], frames: queue.SimpleQueue[Frame], folder: str) -> None:
    while True:
        frame = read_frame(pipe)
        if frame is None:
            _abandon(folder)
        elif frame[0]["say"] == "end":
            os._exit(0)
        else:
            frames.put(frame)


def _abandon(folder: str) -> None:
    """End after the executor was killed, and remove its files, because nothing else will."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _work(frames: queue.SimpleQueue[Frame], answers: IO[bytes]) -> None:
    # Import this late: until here, a worker must notice at once that its executor is gone.
    import torch

    from fedrec.training.executors.executor import failure_of
    from fedrec.training.executors.trained_tasks import TrainedTasks

    torch.set_num_threads(1)
    tasks = TrainedTasks()
    write_frame(answers, {"say": "ready"})
    while True:
        header, body = frames.get()
        try:
            answer = tasks.hear(header, body)
        except Exception as error:
            answer = failure_of(error)
        if answer is not None:
            write_frame(answers, answer)


if __name__ == "__main__":
    main()
