"""fedrec: federated recommendation with sums that the coordinator cannot read."""

__version__ = "0.1.0"
