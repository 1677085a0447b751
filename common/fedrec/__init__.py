"""fedrec: federated recommendation with sums that the coordinator cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrec.recommender import Recommender

__all__ = ["Recommender", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `Recommender` when it is asked for, so that `import fedrec` stays cheap."""
    if name == "Recommender":
        from fedrec.recommender import Recommender

        return Recommender
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
