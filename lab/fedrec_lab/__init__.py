"""fedrec_lab: a federation in one process, published results, references, reports and audits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedrec.extras import not_installed

if TYPE_CHECKING:
    from fedrec_lab.comparison.comparing import Comparison, compare
    from fedrec_lab.comparison.runs import RunsComparison, compare_runs
    from fedrec_lab.simulation.recording import save_run
    from fedrec_lab.simulation.result import SimulationResult
    from fedrec_lab.simulation.runner import simulate

__all__ = [
    "Comparison",
    "RunsComparison",
    "SimulationResult",
    "compare",
    "compare_runs",
    "save_run",
    "simulate",
]

_HOMES = {
    "Comparison": "fedrec_lab.comparison.comparing",
    "RunsComparison": "fedrec_lab.comparison.runs",
    "SimulationResult": "fedrec_lab.simulation.result",
    "compare": "fedrec_lab.comparison.comparing",
    "compare_runs": "fedrec_lab.comparison.runs",
    "save_run": "fedrec_lab.simulation.recording",
    "simulate": "fedrec_lab.simulation.runner",
}


def __getattr__(name: str) -> object:
    """Import a name on first use.

    Raises:
        SettingsError: a package isn't installed. The message has the command that installs it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or "") from error
