"""Copies of the model for clients that are too far behind."""
