"""Rounds under pairwise masks: messages collected, steps closed, what participants fetch."""
