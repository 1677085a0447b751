"""Local training: users in cohorts, rounded to the grid and summed as integers."""

import os

# Idle OpenMP threads that spin make a machine with more processes than cores ten times slower.
# It must be set before torch loads OpenMP; what the environment says already wins.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
