"""Engines: what trains a round's users, in this process or in several.

A worker process imports this package before it can see that its executor is gone, so it imports
nothing itself.
"""
