"""Whoever follows a run, a client or the key authority: link, membership, shared model, state."""
