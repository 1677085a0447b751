"""A model's tensors: what is shared, what stays with users, and how both are kept."""
