"""The federation whose rounds executors train."""

from world.rounds import plan_of, play, same, users

__all__ = ["plan_of", "play", "same", "users"]
