"""Participate in rounds: train, protect, send, and follow published rounds."""
