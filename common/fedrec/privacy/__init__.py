"""Differential privacy under a sum: per-user clipping, shares of integer noise, and accounting."""

from fedrec.privacy.mechanism import BUDGET_SPENT, Mechanism, Spent, cheapest_rho

__all__ = ["BUDGET_SPENT", "Mechanism", "Spent", "cheapest_rho"]
