"""Count files, statements and lines of code by package.

    python tools/count_lines.py                          # packages and their folders, as they are

    python tools/count_lines.py COMMIT                   # and how much they changed since a commit

    python tools/count_lines.py --depth 1 > tools/size.txt
    python tools/count_lines.py --within tools/size.txt  # fails if something has grown

Generated code isn't counted, nor is a file that holds only a docstring. A statement over three
lines is one statement and three lines. Docstrings and comments don't count.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("common", "server", "client", "lab")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """How much code there is."""

    files: int = 0
    statements: int = 0
    lines: int = 0

    def plus(self, other: Size) -> Size:
        """Return both together."""
        return Size(*(one + another for one, another in zip(self, other, strict=True)))


def size_of(source: str) -> Size:
    """Return the size of a module's text."""
    docstrings = _docstrings(ast.parse(source))
    statements = -len(docstrings)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        statements += token.type == tokenize.NEWLINE
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings:
        lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Size(1, statements, len(lines)) if lines else Size()


def _docstrings(tree: ast.Module) -> list[ast.Expr]:
    """Return docstrings, those of attributes (a string alone) included."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def counted(commit: str | None, depth: int) -> dict[str, Size]:
    """Return the size of each package, and of each folder in it down to a depth.

    Args:
        commit: what `git` calls a commit, or None for the working tree.
    """
    listed = ["ls-files"] if commit is None else ["ls-tree", "-r", "--name-only", commit]
    found: dict[str, Size] = {}
    for name in _git(*listed, "--", *PACKAGES).splitlines():
        path = PurePosixPath(name)
        if path.suffix != ".py" or name.endswith(GENERATED):
            continue
        if commit is None and not (ROOT / name).exists():
            continue
        source = (
            (ROOT / name).read_text("utf-8") if commit is None else _git("show", f"{commit}:{name}")
        )
        size = size_of(source)
        for folder in ("all", *(str(each) for each in reversed(path.parents[:-1]))):
            if len(PurePosixPath(folder).parts) <= depth:
                found[folder] = found.get(folder, Size()).plus(size)
    return dict(sorted(found.items()))


def table(sizes: dict[str, Size], before: dict[str, Size] | None) -> str:
    """Return sizes as a table, with their changes where there is something to compare with."""
    form = "{:>7}{:>12}{:>9}  {}" if before is None else "{:>14}{:>19}{:>17}  {}"
    rows = [form.format("files", "statements", "lines", "package")]
    for name in sorted(sizes | (before or {})):
        now = sizes.get(name, Size())
        cells = [f"{one:,}" for one in now]
        if before is not None:
            changes = (one - old for one, old in zip(now, before.get(name, Size()), strict=True))
            cells = [f"{cell} ({change:+,})" for cell, change in zip(cells, changes, strict=True)]
        rows.append(form.format(*cells, name))
    return "\n".join(rows)


def read_table(path: Path) -> dict[str, Size]:
    """Read a table without changes."""
    found = {}
    for line in path.read_text("utf-8").splitlines()[1:]:
        *numbers, name = line.split()
        found[name] = Size(*(int(number.replace(",", "")) for number in numbers))
    return found


def grown(sizes: dict[str, Size], most: dict[str, Size]) -> list[str]:
    """Return a sentence for each number that is above the table's."""
    return [
        f"{name} has {now:,} {what}, but the table allows {then:,}."
        for name, size in sizes.items()
        for what, now, then in zip(Size._fields, size, most.get(name, Size()), strict=True)
        if now > then
    ]


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def main() -> int:
    """Print the table, or what has grown, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--depth", type=int, default=3, help="of folders, 3 unless told otherwise")
    parser.add_argument("--within", type=Path, metavar="TABLE", help="what may not be exceeded")
    asked = parser.parse_args()
    try:
        if asked.within is None:
            before = counted(asked.commit, asked.depth) if asked.commit else None
            print(table(counted(None, asked.depth), before))
            return 0
        sentences = grown(counted(None, 1), read_table(asked.within))
    except subprocess.CalledProcessError:
        return 2
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    if sentences:
        print(
            "Delete or merge something, or say in the commit why it must grow and write the "
            f"table anew: python tools/count_lines.py --depth 1 > {asked.within}",
            file=sys.stderr,
        )
    return bool(sentences)


if __name__ == "__main__":
    sys.exit(main())
