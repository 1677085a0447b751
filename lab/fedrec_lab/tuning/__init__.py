"""A study: which algorithm and which settings are best on validation."""
