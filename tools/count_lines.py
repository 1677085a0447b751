"""Count the lines of code by package: no blank lines, comments, docstrings, generated code.

    python tools/count_lines.py            # packages and their folders, as they are
    python tools/count_lines.py COMMIT     # as they were in a commit, and the difference

A line counts when a token of the program stands on it: a statement over three lines is three.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path, PurePosixPath

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


def code_lines(source: str) -> int:
    """Return how many lines of a module's text hold code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings, those of attributes (a string alone) included."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def counted(commit: str | None) -> Counter[str]:
    """Return the lines of each package and of each folder in it.

    Args:
        commit: what `git` calls a commit; None for the working tree.
    """
    listed = ["ls-files"] if commit is None else ["ls-tree", "-r", "--name-only", commit]
    found: Counter[str] = Counter()
    for name in _git(*listed, "--", *PACKAGES).splitlines():
        path = PurePosixPath(name)
        if path.suffix != ".py" or name.endswith(GENERATED):
            continue
        source = (
            (ROOT / name).read_text("utf-8") if commit is None else _git("show", f"{commit}:{name}")
        )
        lines = code_lines(source)
        for folder in (PurePosixPath("."), *reversed(path.parents[:-1])):
            found[str(folder)] += lines
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--depth", type=int, default=3, help="of folders, 3 unless told otherwise")
    asked = parser.parse_args()
    try:
        now, before = counted(None), counted(asked.commit) if asked.commit else None
    except subprocess.CalledProcessError:
        return 2
    for folder in sorted(now | (before or Counter())):
        if len(PurePosixPath(folder).parts) > asked.depth:
            continue
        name = "all" if folder == "." else folder
        if before is None:
            print(f"{now[folder]:7,}  {name}")
        else:
            change = now[folder] - before[folder]
            print(f"{before[folder]:7,}  {now[folder]:7,}  {change:+7,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
