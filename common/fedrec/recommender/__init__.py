"""recommender."""
