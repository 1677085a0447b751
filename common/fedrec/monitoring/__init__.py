"""Numbers for Prometheus: what a party counts, and the port where they are read.

No user, item or client has a number of its own: a label that named one would publish who takes
part. Names begin with `fedrec_` and are in base units.
"""

from __future__ import annotations

from fedrec.monitoring.endpoint import MetricsEndpoint, Monitored, Numbers, metrics_endpoint

__all__ = ["MetricsEndpoint", "Monitored", "Numbers", "metrics_endpoint"]
