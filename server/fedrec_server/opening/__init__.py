"""Sums that somebody else opens: what the key authority fetches, its word, members' reports."""
