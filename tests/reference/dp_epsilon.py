"""What rounds of Gaussian noise cost, by Google's dp-accounting.

It is imported when it is asked: with scipy that takes more than half a second.
"""

from __future__ import annotations


def by_loss_distributions(noise: float, rounds: int, delta: float) -> float:
    """Return the epsilon of privacy loss distributions.

    Args:
        noise: standard deviation for a sensitivity of one.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


def by_renyi(noise: float, rounds: int, delta: float) -> float:
    """Return the epsilon of Rényi accounting, over its list of orders."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))
