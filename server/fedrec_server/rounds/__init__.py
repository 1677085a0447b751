"""The rounds of a run as a pure state machine: `step(state, event) -> (state, changes)`."""
