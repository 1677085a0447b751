"""Commands are called in the test's own process."""

from command import Fedrec, Outcome, fedrec, interactions_file, settings_file, without_figures

__all__ = ["Fedrec", "Outcome", "fedrec", "interactions_file", "settings_file", "without_figures"]
