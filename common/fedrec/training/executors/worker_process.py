"""The executor's handle of one worker process, and the protocol over their pipes."""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedrec.processes import module_search_path

_LENGTHS = struct.Struct("<IQ")


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], body: bytes = b"") -> None:
    """Write a frame and flush it."""
    text = json.dumps(header, separators=(",", ":")).encode()
    pipe.write(_LENGTHS.pack(len(text), len(body)))
    pipe.write(text)
    pipe.write(body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame, or None if the other side is gone, even in the middle of a frame."""
    lengths = _exactly(pipe, _LENGTHS.size)
    if lengths is None:
        return None
    n_text, n_body = _LENGTHS.unpack(lengths)
    text, body = _exactly(pipe, n_text), _exactly(pipe, n_body)
    if text is None or body is None:
        return None
    return json.loads(text), body


def _exactly(pipe: IO[bytes], n_bytes: int) -> bytes | None:
    found = pipe.read(n_bytes)
    return found if len(found) == n_bytes else None


_TAIL_BYTES = 4000
_SECONDS_TO_END = 5.0
_PASSED = frozenset(
    {
        # The locations of programs, libraries and caches.
        "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
        "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "FEDREC_CACHE", "NUMBA_CACHE_DIR",
        # The encoding of text.
        "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS",
        "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
        # The instructions for arithmetic must be the same as here, or bits would differ.
        "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE",
        "OPENBLAS_CORETYPE", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NPY_DISABLE_CPU_FEATURES",
        "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "GLIBC_TUNABLES",
    }
)  # fmt: skip
_ONE_THREAD = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


def clean_environment() -> dict[str, str]:
    """Return a worker's environment: only the variables that are listed here.

    No key or token from this process's own environment reaches a worker.
    """
    found = {name: value for name, value in os.environ.items() if name in _PASSED}
    found |= dict.fromkeys(_ONE_THREAD, "1")
    found["PYTHONPATH"] = module_search_path()
    return found


class WorkerProcess:
    """A process that runs `fedrec.training.executors.worker`.

    Args:
        folder: the folder of the shared files.
        heard: receives (this, header) for every answer, and (this, None) when the process has died.
    """

    def __init__(
        self, folder: Path, heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]]
    ) -> None:
        self._heard = heard
        self._log = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed in `end`)
        self._sent: dict[str, object] = {}
        # Start a new interpreter, never a fork: this process may have threads that hold locks, and
        # a notebook has no main module to import. Its own process group leaves Ctrl-C to this
        # process.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedrec.training.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=clean_environment(),
            process_group=0,
        )
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()
        self.tell({"say": "hello", "parent": os.getpid(), "folder": str(folder)})

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def tell(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a frame. If the process has died, `heard` receives None."""
        assert self._process.stdin is not None
        with suppress(OSError):
            write_frame(self._process.stdin, header, body)

    def tell_once(self, matter: object, header: Mapping[str, Any]) -> None:
        """Send a frame unless the last one of its kind was about the same object."""
        if self._sent.get(header["say"]) is not matter:
            self._sent[header["say"]] = matter
            self.tell(header)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while True:
            frame = read_frame(self._process.stdout)
            self._heard.put((self, None if frame is None else frame[0]))
            if frame is None:
                return

    def exit_code(self) -> int:
        """Return the exit code of a process that has closed its output."""
        try:
            return self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self) -> str:
        """Return the end of its stderr."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - _TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def end(self) -> None:
        """End the process, even in the middle of a task."""
        self.tell({"say": "end"})
        self.exit_code()
        self._ear.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._log.close()
