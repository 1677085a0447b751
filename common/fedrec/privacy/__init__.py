"""Differential privacy under a sum: per-user clipping, shares of integer noise, and accounting."""

from fedrec.privacy.mechanism import BUDGET_SPENT, Mechanism, Spent, largest_rho

__all__ = ["BUDGET_SPENT", "Mechanism", "Spent", "largest_rho"]
