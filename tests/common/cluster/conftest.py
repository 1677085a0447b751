"""The federation whose rounds a cluster trains."""

from world.rounds import plan_of, play, same, users

__all__ = ["plan_of", "play", "same", "users"]
