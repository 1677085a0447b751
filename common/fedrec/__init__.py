"""fedrec: federated recommendation with sums that the coordinator cannot read.

The names that a program needs to read data and settings and to recommend. `fedrec_lab` trains.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrec.data.interactions import Interactions
    from fedrec.data.source import load_data
    from fedrec.errors import FedrecError
    from fedrec.recommender import Recommender
    from fedrec.settings.schema import Settings
    from fedrec.settings.validation import load_settings

__all__ = [
    "FedrecError",
    "Interactions",
    "Recommender",
    "Settings",
    "__version__",
    "load_data",
    "load_settings",
]

__version__ = "0.2.0.dev0"

_HOMES = {
    "FedrecError": "fedrec.errors",
    "Interactions": "fedrec.data.interactions",
    "Recommender": "fedrec.recommender",
    "Settings": "fedrec.settings.schema",
    "load_data": "fedrec.data.source",
    "load_settings": "fedrec.settings.validation",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import fedrec` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
