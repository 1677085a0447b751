"""A model's tensors, shared and private, and how both are stored."""
