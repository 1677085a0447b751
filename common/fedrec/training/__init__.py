"""Local training: users in cohorts, rounded to the grid and summed as integers."""
