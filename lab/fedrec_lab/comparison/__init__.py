"""Compare an algorithm with the baselines and references that it must beat."""
