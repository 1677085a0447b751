"""Draw small faults by a seed, and see which of them the tests notice.

    python tools/mutants.py draw --seed 1 --count 60 > mutants.jsonl

    python tools/mutants.py run mutants.jsonl > results.jsonl             # in this checkout

    python tools/mutants.py run mutants.jsonl --tree FOLDER > later.jsonl # in another one
    python tools/mutants.py compare results.jsonl later.jsonl

A fault is one changed operator, constant or statement in a function of the rooms below. It is named
by the function's name and the line's text, so that it's found again after the code has moved. A
fault is noticed if the tests of its room, or else the fast part, fail or last too long. Run it
in a checkout without other changes: files are changed and put back.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("common", "server", "client", "lab")
ROOMS = {
    "rounds": ("server/fedrec_server/rounds", "tests/server"),
    "store": ("server/fedrec_server/store", "tests/server"),
    "opening": ("server/fedrec_authority/opening", "tests/authority"),
    "protection": ("common/fedrec/protection", "tests/common/protection"),
    "privacy": ("common/fedrec/privacy", "tests/common/privacy"),
    "algorithms": ("common/fedrec/algorithms", "tests/common/algorithms"),
    "training": ("common/fedrec/training", "tests/common/training"),
    "data": ("common/fedrec/data", "tests/common/data"),
}
FAST = ("tests/common", "tests/lab", "tests/client", "tests/authority", "tests/docs")
FAST_MARK = "not cuda and not slow and not long and not hours"
ROOM_MARK = "not cuda and not long and not hours"
LONGEST_SECONDS = 900
SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
Place = tuple[int, int, int, int]
"""First line and column, last line and column. Lines count from 1, columns in bytes."""


@dataclass(frozen=True)
class Mutant:
    """One fault: in a function, the text from one place to another becomes another text.

    Attributes:
        within: the function's name, with its class's before it.
        line: of the function's text, the line on which the fault begins, without indentation.
        turn: which one of the function's lines of this text, from 0.
        column: where on that line, from 0.
    """

    room: str
    path: str
    within: str
    line: str
    turn: int
    column: int
    before: str
    after: str


def mutants_of(room: str, path: str, source: str) -> Iterator[Mutant]:
    """Yield every fault that a file can have."""
    lines = source.splitlines()
    for within, function in _functions(ast.parse(source)):
        first, last = function.body[0].lineno, function.end_lineno or 0
        for place, after in _changes(function, lines):
            before = _text(lines, place)
            stripped = lines[place[0] - 1].strip()
            indent = len(lines[place[0] - 1]) - len(lines[place[0] - 1].lstrip())
            same = [n for n in range(first, last + 1) if lines[n - 1].strip() == stripped]
            if place[0] in same and before != after:
                turn, column = same.index(place[0]), place[1] - indent
                yield Mutant(room, path, within, stripped, turn, column, before, after)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield functions and methods with their names. A nested one belongs to the outer."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield prefix + member.name, member


def _changes(function: ast.AST, lines: list[str]) -> Iterator[tuple[Place, str]]:
    """Yield the places of a function's code that can be changed, with the changed text."""
    for node in _code(function):
        if isinstance(node, ast.Compare):
            between = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            for left, operator, right in between:
                yield from _swap(lines, left, operator, right)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from _swap(lines, left, node.op, right)
        elif isinstance(node, ast.BinOp):
            yield from _swap(lines, node.left, node.op, node.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield (node.lineno, node.col_offset, node.operand.lineno, node.operand.col_offset), ""
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
            value = (not node.value) if isinstance(node.value, bool) else node.value + 1
            yield _place(node), str(value)
        elif isinstance(node, (ast.Raise, ast.Expr)):
            yield _place(node), "pass"


def _code(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        is_text = isinstance(child, (ast.JoinedStr, ast.arguments)) or (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        )
        if is_text or (isinstance(node, ast.AnnAssign) and child is node.annotation):
            continue
        yield child
        # An error's sentences aren't behaviour to test.
        if not isinstance(child, ast.Raise):
            yield from _code(child)


def _swap(
    lines: list[str], left: ast.expr, operator: ast.AST, right: ast.expr
) -> Iterator[tuple[Place, str]]:
    change = SWAPPED.get(type(operator))
    start, end = (left.end_lineno, left.end_col_offset), (right.lineno, right.col_offset)
    if change is None or start[0] != end[0] or start[0] is None or start[1] is None:
        return
    between = lines[start[0] - 1].encode()[start[1] : end[1]].decode()
    at = between.find(change[0])
    if at >= 0:
        column = start[1] + at
        yield (start[0], column, start[0], column + len(change[0])), change[1]


def _place(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _text(lines: list[str], place: Place) -> str:
    piece = lines[place[0] - 1 : place[2]]
    piece[-1] = piece[-1].encode()[: place[3]].decode()
    piece[0] = piece[0].encode()[place[1] :].decode()
    return "\n".join(piece)


def draw(seed: int, count: int) -> list[Mutant]:
    """Return `count` faults, as many from each room, no two in one function."""
    stream = random.Random(seed)
    drawn: list[Mutant] = []
    for number, (room, (folder, _)) in enumerate(ROOMS.items()):
        every: list[Mutant] = []
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            every += mutants_of(room, name, path.read_text("utf-8"))
        stream.shuffle(every)
        functions = {(each.path, each.within): each for each in every}
        share = (number + 1) * count // len(ROOMS) - number * count // len(ROOMS)
        chosen = sorted(functions.values(), key=lambda each: (each.path, each.within, each.line))
        drawn += stream.sample(chosen, min(share, len(chosen)))
    return drawn


def place(mutant: Mutant, tree: Path) -> tuple[Path, str] | None:
    """Return the file that has a fault's code in a tree, and its text with the fault."""
    files = [path for name in PACKAGES for path in sorted((tree / name).rglob("*.py"))]
    files.sort(key=lambda path: str(path.relative_to(tree)) != mutant.path)
    for path in files:
        source = path.read_text("utf-8")
        for found in mutants_of(mutant.room, mutant.path, source) if mutant.line in source else ():
            if found == mutant:
                return path, _changed(source, mutant)
    return None


def _changed(source: str, mutant: Mutant) -> str:
    lines = source.splitlines(keepends=True)
    function = dict(_functions(ast.parse(source)))[mutant.within]
    numbers = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
    same = [number for number in numbers if lines[number - 1].strip() == mutant.line]
    at = sum(len(line) for line in lines[: same[mutant.turn] - 1])
    line = lines[same[mutant.turn] - 1]
    at += len(line) - len(line.lstrip()) + mutant.column
    if not source.startswith(mutant.before, at):
        raise ValueError(f"{mutant} isn't at its place")
    return source[:at] + mutant.after + source[at + len(mutant.before) :]


def run(mutant: Mutant, tree: Path) -> str:
    """Return what notices a fault (its room's tests, the fast part, nothing), or that it's gone."""
    found = place(mutant, tree)
    if found is None:
        return "not found"
    path, text = found
    original = path.read_text("utf-8")
    path.write_text(text, "utf-8")
    try:
        if _fails(tree, (ROOMS[mutant.room][1],), ROOM_MARK):
            return "room"
        return "fast" if _fails(tree, FAST, FAST_MARK) else "survives"
    finally:
        path.write_text(original, "utf-8")


def _fails(tree: Path, tests: tuple[str, ...], mark: str) -> bool:
    words = ["-m", "pytest", "-x", "-q", "--numprocesses", "2", "--dist", "loadfile", "-m", mark]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    there = [each for each in tests if (tree / each).exists()]
    command = [str(tree / ".venv/bin/python"), *words, "--hypothesis-profile", "fast", *there]
    # In a session of its own, so that what the tests started ends with them.
    process = subprocess.Popen(command, cwd=tree, env=settings, start_new_session=True, **quiet)
    try:
        return process.wait(LONGEST_SECONDS) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Draw, run or compare, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    running = verbs.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--tree", type=Path, default=ROOT)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.verb == "draw":
        for mutant in draw(asked.seed, asked.count):
            print(json.dumps(asdict(mutant)))
        return 0
    if asked.verb == "run":
        for line in asked.mutants.read_text("utf-8").splitlines():
            mutant = json.loads(line)
            noticed = run(Mutant(**mutant), asked.tree.resolve())
            print(json.dumps(mutant | {"noticed": noticed}), flush=True)
        return 0
    before, after = (
        {json.dumps(each | {"noticed": ""}): each["noticed"] for each in map(json.loads, lines)}
        for lines in (path.read_text("utf-8").splitlines() for path in (asked.before, asked.after))
    )
    lost = [name for name, by in before.items() if by != "survives" and after[name] == "survives"]
    missing = [name for name in before if after.get(name, "not found") == "not found"]
    died = sum(by != "survives" for by in before.values())
    print(f"{died} of {len(before)} were noticed before. {len(lost)} of them survive now, ", end="")
    print(f"{len(missing)} have to be found by hand.")
    for name in (*lost, *missing):
        print(name)
    return bool(lost or missing)


if __name__ == "__main__":
    sys.exit(main())
