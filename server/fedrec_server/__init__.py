"""The coordinator: rounds, storage and sums of updates that it cannot read."""

# Says to gRPC how to speak before anything here imports it.
import fedrec.wire  # noqa: F401
