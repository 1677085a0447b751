"""The coordinator: rounds, storage and sums of updates that it cannot read."""

# Sets gRPC's TLS options before anything here imports it.
import fedrec.wire  # noqa: F401
