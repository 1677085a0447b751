"""Runs the notebooks in `docs/notebooks` and writes their outputs into them.

    python docs/notebooks.py

A test runs every notebook again. Jupyter isn't needed: a notebook is JSON, its code cells are
Python without magic commands, and what a cell's last line shows is its output.
"""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"
LARGEST_BYTES = 150_000
"""Of a notebook with its outputs."""

Cell = dict[str, Any]


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of its code cells, run in order in one namespace.

    Raises:
        Exception: what a cell raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[Cell] = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _outputs(cell, names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(cell: Cell, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell and return what it prints, followed by the value of its last line."""
    tree = ast.parse("".join(cell["source"]), filename=f"cell {count}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            expression = ast.Expression(last.value)
            value = eval(compile(expression, f"cell {count}", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if (html := getattr(value, "_repr_html_", None)) is not None:
            data["text/html"] = html().splitlines(keepends=True)
        shown = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        found.append({**shown, "data": data})
    return found


def written(notebook: dict[str, Any]) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Run every notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        text = written(executed(json.loads(path.read_text(encoding="utf-8"))))
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path} ({len(text.encode()):,} bytes)")


if __name__ == "__main__":
    main()
