"""The same federation without encryption, to be held against the encrypted one."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.evaluation.metrics import Rates

__all__ = ["Comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the plain federation reached.

    Attributes:
        test: test rates of its version that was best on validation.
        low, high: 95 % bootstrap interval over users of its NDCG over popularity's.
    """

    test: Rates
    low: float
    high: float

    def sentences(self, encrypted: Rates) -> list[str]:
        """Return what the comparison shows."""
        same = encrypted == self.test
        return [
            "Without encryption the result is "
            + ("the same to the last bit." if same else "NOT the same."),
            f"NDCG minus popularity's: 95 % interval [{self.low:.4f}, {self.high:.4f}] over users.",
        ]
