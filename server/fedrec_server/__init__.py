"""The coordinator: rounds, storage and sums of updates that it cannot read."""
