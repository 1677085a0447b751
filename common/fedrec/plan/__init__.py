"""The meaning of a plan: its vector, rows, noise and price, combinations and agreement."""
