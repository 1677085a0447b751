"""Executors: train a round's users in this process or in several.

A worker process imports this package before it can detect that its executor is gone. The package
therefore imports nothing itself.
"""
