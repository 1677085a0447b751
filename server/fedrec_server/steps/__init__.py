"""Rounds of several steps: messages collected, steps closed, what participants fetch."""
