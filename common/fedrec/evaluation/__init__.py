"""Metrics as sums over users, and the protocols that rank items."""
