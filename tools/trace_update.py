"""Follow one update of a small federation and list the functions that it passes, in order.

    python tools/trace_update.py                     # under none
    python tools/trace_update.py --protection bfv
    python tools/trace_update.py --tree FOLDER       # in a checkout of another commit

A coordinator and three clients run in one process, over real sockets. In the first round that
trains, one client's update is followed from `contribute` until the row that counts it is committed.
Then the round's sum is followed until a client has published the model made from it.

A function of ours lies on the way if an argument, or its result, is the update or holds it: the
vector, the protected bytes, a piece or a file of them, or the signed header. An object with one of
these as an attribute counts, too, and so does a call with one as an argument.

A function *hands on* the update if it calls another one on the way. Others only look at it, or are
where it ends. Generated code isn't counted. A function inside an expression counts as its outer.

A *return* is an entry into a file that was left before. A *climb* is a call into a layer above the
caller's, by the layers of import-linter in `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import re
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("common", "server", "client", "lab")
DEPTH = 2
"""How far inside an argument the update is looked for."""
MANY = 8
"""Longer lists are not looked through."""
SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


@dataclass(slots=True, kw_only=True)
class Passed:
    """A function that the update passed.

    Attributes:
        entered: its place in the order of first calls.
        above: the function that handed the update on to it, or None if another thread did.
    """

    file: str
    name: str
    entered: int
    above: tuple[str, str] | None
    hands_on: bool = False


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call in progress: whether it holds the update, and when it began."""

    number: int
    holds: bool


class Tracer:
    """Follows the update of the first client that trains, and then the sum of its round.

    Args:
        tree: the checkout whose functions are ours.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = str(tree) + "/"
        self._lock = threading.RLock()
        self._local = threading.local()
        self._names: dict[CodeType, tuple[str, str] | None] = {}
        self._vectors: list[Any] = []
        self._payload = b""
        self._digest = b""
        self._number = 0
        self._began = False
        self._calls: dict[FrameType, _Call] = {}
        self.passed: dict[tuple[str, str], Passed] = {}
        self.update: dict[tuple[str, str], Passed] = {}
        self.done = threading.Event()

    def profile(self, frame: FrameType, event: str, value: Any) -> None:
        """Hear of every call and return, in every thread."""
        if event not in ("call", "return") or self.done.is_set():
            return
        name = self._name(frame.f_code)
        if name is None or getattr(self._local, "inside", False):
            return
        self._local.inside = True
        try:
            with self._lock:
                self._hear(frame, event, value, name)
        finally:
            self._local.inside = False

    def _hear(self, frame: FrameType, event: str, value: Any, name: tuple[str, str]) -> None:
        if not self._began:
            if event == "return" and value is not None:
                self._begin(frame, value, name)
            return
        if event == "call":
            if frame not in self._calls:
                self._number += 1
                self._calls[frame] = _Call(number=self._number, holds=False)
            call = self._calls[frame]
            if not call.holds and self._holds_any(self._arguments(frame)):
                call.holds = True
                self._note(frame, name)
            return
        self._learn(frame, value, name[1])
        known = self._calls.get(frame)
        if known is not None and not known.holds and self._holds(value, DEPTH):
            known.holds = True
            self._note(frame, name)
        ended = frame.f_code.co_flags & SUSPENDS == 0 or value is None
        if ended:
            self._calls.pop(frame, None)
        if not ended or known is None:
            return
        if self.update and name[1] == "PrivateStore.publish":
            self.done.set()
        elif not self.update and known.holds and name[1].endswith("Store.commit"):
            # From here on the sum is what is followed.
            self.update, self.passed = self.passed, {}
            self._vectors, self._payload, self._digest, self._began = [], b"", b"", False
            self._calls.clear()

    def _begin(self, frame: FrameType, value: Any, name: tuple[str, str]) -> None:
        """Begin where what is to be followed is handed over."""
        found = frame.f_locals
        if not self.update and name[1] == "LocalModel.contribute" and found["kind"] == "train":
            self._vectors.append(value.vector)
        elif self.update and name[1].endswith(".finish") and "counted" in found:
            self._payload = value
        else:
            return
        self._began = True
        self._note(frame, name)

    def _learn(self, frame: FrameType, value: Any, name: str) -> None:
        """Learn the forms that the vector takes: protected, described, refreshed, revealed."""
        makes_bytes = name.endswith((".protect", ".refreshed")) and isinstance(value, bytes)
        describes = bool(self._payload) and getattr(value, "length", 0) == len(self._payload)
        reveals = name.endswith(".reveal")
        describes = describes and not self._digest and hasattr(value, "digest")
        if not (makes_bytes or describes or reveals):
            return
        if not self._holds_any(self._arguments(frame)):
            return
        if makes_bytes:
            self._payload = value
        elif describes:
            self._digest = value.digest
        else:
            self._vectors.append(value)

    def _note(self, frame: FrameType, name: tuple[str, str]) -> None:
        call = self._calls.get(frame)
        number = self._number if call is None else call.number
        above, outer = None, frame.f_back
        while outer is not None and above is None:
            found = self._calls.get(outer)
            outer_name = self._name(outer.f_code)
            if found is not None and outer_name not in (None, name):
                found.holds = True
                above = outer_name
                assert outer_name is not None
                if outer_name not in self.passed:
                    self._note(outer, outer_name)
                self.passed[outer_name].hands_on = True
            outer = outer.f_back
        if name not in self.passed:
            self.passed[name] = Passed(file=name[0], name=name[1], entered=number, above=above)

    def _arguments(self, frame: FrameType) -> Iterator[Any]:
        code = frame.f_code
        n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
        found = frame.f_locals
        for variable in (*code.co_varnames[:n], *code.co_freevars):
            if variable in found:
                yield found[variable]
        if code.co_flags & CO_VARKEYWORDS:
            yield from tuple(found[code.co_varnames[n]].values())

    def _holds_any(self, values: Iterator[Any]) -> bool:
        return any(self._holds(value, DEPTH) for value in values)

    def _holds(self, value: Any, depth: int) -> bool:
        """Return whether a value is the update, or holds it not too deep inside."""
        if value is None or isinstance(value, int | float | str | type | CodeType):
            return False
        if isinstance(value, bytes | bytearray | memoryview):
            return self._is_piece(bytes(value))
        if isinstance(value, io.IOBase):
            return self._is_piece(_content_of(value, len(self._payload)))
        if type(value).__name__ == "ndarray":
            return any(value is one or value.base is one for one in self._vectors)
        if self._is_named(value):
            return True
        if depth == 0:
            return False
        return any(self._holds(part, depth - 1) for part in _parts_of(value))

    def _is_piece(self, raw: bytes) -> bool:
        payload = self._payload
        if not payload or len(raw) <= len(self._digest):
            return False
        if payload in raw or (2 * len(raw) >= len(payload) and raw in payload):
            return True
        # A message of the wire with the header.
        return bool(self._digest) and self._digest in raw

    def _is_named(self, value: Any) -> bool:
        """Return whether it is the header, as ours or as a message of the wire."""
        if not self._digest or not hasattr(type(value), "digest"):
            return False
        return bool(getattr(value, "digest", None) == self._digest)

    def _name(self, code: CodeType) -> tuple[str, str] | None:
        """Return file and name of a function of ours, else None."""
        if code not in self._names:
            file = code.co_filename
            found = None
            if file.startswith(self._tree):
                file = file[len(self._tree) :]
                ours = file.split("/")[0] in PACKAGES and "_pb2" not in file
                name = re.sub(r"(\.<locals>)?\.<\w+>", "", code.co_qualname)
                found = (file, name) if ours and not name.startswith("<") else None
            self._names[code] = found
        return self._names[code]


def _parts_of(value: Any) -> Iterator[Any]:
    """Return what a value holds: elements, attributes, and arguments of a call not yet made."""
    match value:
        case tuple() | list() | set() | frozenset():
            if len(value) <= MANY:
                yield from value
        case functools.partial():
            yield from (value.func, *value.args, *value.keywords.values())
        case MethodType():
            yield value.__self__
        case FunctionType():
            yield from (cell.cell_contents for cell in value.__closure__ or () if _filled(cell))
        case CoroutineType() | GeneratorType():
            yield from _locals_of(value, "cr_frame", "gi_frame")
        case _ if type(value).__module__.startswith("fedrec"):
            yield from getattr(value, "__dict__", {}).values()
            for base in type(value).__mro__:
                slots = getattr(base, "__slots__", ())
                yield from (getattr(value, slot, None) for slot in slots if slot != "__weakref__")
        case _ if type(value).__name__ == "async_generator":
            yield from _locals_of(value, "ag_frame")
        case _:
            return


def _locals_of(value: Any, *frames: str) -> Iterator[Any]:
    """Return the variables of a coroutine or generator that is not over."""
    for name in frames:
        frame = getattr(value, name, None)
        yield from () if frame is None else tuple(frame.f_locals.values())


def _content_of(file: Any, length: int) -> bytes:
    """Return the first bytes of an open file and leave its position. Others give none."""
    try:
        return os.pread(file.fileno(), length, 0)
    except (OSError, ValueError):
        return b""


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


@dataclass(kw_only=True)
class Layers:
    """The layers of `pyproject.toml`: a module's height in every container that has them."""

    ranks: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Path) -> Layers:
        """Read them."""
        made = cls()
        found = tomllib.loads((tree / "pyproject.toml").read_text())
        for contract in found["tool"]["importlinter"]["contracts"]:
            if contract["type"] != "layers":
                continue
            for container in contract.get("containers", [""]):
                height = made.ranks.setdefault(container, {})
                for rank, names in enumerate(reversed(contract["layers"])):
                    height |= {name.strip(): rank for name in names.split("|")}
        return made

    def is_climb(self, above: str, file: str) -> bool:
        """Return whether a call leads from a file into a layer above it."""
        one, other = _module(above), _module(file)
        same = 0
        while same < min(len(one), len(other)) and one[same] == other[same]:
            same += 1
        if same >= min(len(one), len(other)):
            return False
        ranks = self.ranks.get(".".join(one[:same]), {})
        return ranks.get(other[same], 0) > ranks.get(one[same], 0)


def _module(file: str) -> list[str]:
    return file.removesuffix(".py").split("/")[1:]


def traced(tree: Path, protection: str, folder: Path) -> Tracer:
    """Run a federation until one update of its first training round is counted."""
    tracer = Tracer(tree)
    threading.setprofile(tracer.profile)
    import structlog
    from world.bench import Bench, plan_of
    from world.parties import Federation, Loop

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    plan = plan_of(protection, algorithm="pfedrec")
    loop = Loop()
    federation = Federation(Bench.make(folder, plan, 3), loop)
    federation.start_all()
    for client in federation.clients:
        client.result()
    threading.setprofile(None)  # type: ignore[arg-type]  # typeshed knows no end of it
    federation.stop()
    loop.close()
    return tracer


def report(found: Iterable[Passed], tree: Path, *, ends: bool) -> None:
    """Print what was passed, in order, and the counts.

    Args:
        ends: also those that hand it on to no other.
    """
    layers = Layers.of(tree)
    passed = sorted(found, key=lambda one: one.entered)
    way = [one for one in passed if one.hands_on or ends]
    left: set[str] = set()
    before, returns, climbs = "", 0, 0
    for one in way:
        marks = ""
        if one.file != before:
            if one.file in left:
                returns += 1
                marks += "  return"
            left.add(before)
            before = one.file
        if one.above is not None and layers.is_climb(one.above[0], one.file):
            climbs += 1
            marks += "  climb"
        sign = "  " if one.hands_on else "- "
        print(f"{sign}{one.file.split('/', 1)[1]:52} {one.name}{marks}")
    n_files = len({one.file for one in way})
    print(f"{len(way)} functions in {n_files} files, {returns} returns, {climbs} climbs")
    print(f"{len(passed) - sum(one.hands_on for one in passed)} more only look at it or end it (-)")


def main() -> None:
    """Follow an update."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--protection", default="none")
    parser.add_argument("--ends", action="store_true", help="list functions that keep it, too")
    parser.add_argument("--tree", type=Path, default=ROOT)
    asked = parser.parse_args()
    tree = asked.tree.resolve()
    sys.path[:0] = [str(tree / part) for part in (*PACKAGES, "tests")]
    with tempfile.TemporaryDirectory() as folder:
        tracer = traced(tree, asked.protection, Path(folder))
    if not tracer.done.is_set():
        sys.exit("No update was counted, or no model published.")
    print("An update, until it is counted:")
    report(tracer.update.values(), tree, ends=asked.ends)
    print("\nThe sum, until a client has published the model:")
    report(tracer.passed.values(), tree, ends=asked.ends)


if __name__ == "__main__":
    main()
