"""The federation whose rounds a cluster trains."""

from command import fedrec, interactions_file, settings_file
from world.rounds import plan_of, play, same, users

__all__ = ["fedrec", "interactions_file", "plan_of", "play", "same", "settings_file", "users"]
