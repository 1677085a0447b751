"""Compiles the training code for processors, when a client's image is built.

`python compile.py FOLDER` fills FOLDER. Clients find it through NUMBA_CACHE_DIR. The code is for
the kind of processor that builds the image. On another kind, a client compiles its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrec.plan.schema import Plan

OTHERWISE = ({"name": "plgc", "weight": 0.0},)
"""Settings of algorithms that aren't compiled with their default settings."""


def main() -> None:
    """Train four users of every plan that has compiled code."""
    folder = Path(sys.argv[1]).absolute()
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    keep_whole_seconds()
    from fedrec.training.learner import Learner

    for plan in plans():
        print(f"{plan.algorithm.name} {plan.update.structure}", flush=True)
        Learner(plan, n_items=12).warm_up()
    # Every account may read it, and none may change it.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def keep_whole_seconds() -> None:
    """Cut off the fractions of the times of fedrec's files.

    numba knows compiled code by the time of its source, of which an image keeps whole seconds.
    """
    spec = find_spec("fedrec")
    assert spec is not None and spec.origin is not None
    for path in Path(spec.origin).parent.rglob("*.py"):
        second = int(path.stat().st_mtime)
        os.utime(path, (second, second))


def plans() -> Iterator[Plan]:
    """Yield a plan for each algorithm and update structure that compiled code has a part in."""
    from fedrec.algorithms import ALGORITHMS
    from fedrec.plan.algorithm import accelerator_of
    from fedrec.plan.schema import Plan

    for name, kind in ALGORITHMS.items():
        for structure in kind.about.updates:
            needs = kind.about.needs
            own = needs[structure].settings if structure in needs else {}
            plan = Plan.model_validate(
                {"algorithm": {"name": name, **own}, "update": {"structure": structure}}
            )
            # EASE trains by its own solver, and counts pairs of items by compiled code.
            if accelerator_of(plan) is not None or name == "ease":
                yield plan
    for chosen in OTHERWISE:
        yield Plan.model_validate({"algorithm": chosen, "update": {"structure": "dense"}})


if __name__ == "__main__":
    main()
