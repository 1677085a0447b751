"""Privacy under the sum: per-user clipping, noise shares in integers, and what they add up to."""

from fedrec.privacy.mechanism import BUDGET_SPENT, Mechanism, Spent, cheapest_rho

__all__ = ["BUDGET_SPENT", "Mechanism", "Spent", "cheapest_rho"]
