"""Train locally: users in cohorts, with changes rounded to the grid and summed as integers."""

import os

# If idle OpenMP threads spin, a machine with more processes than cores becomes ten times slower.
# This must be set before torch loads OpenMP. A value in the environment takes precedence.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
