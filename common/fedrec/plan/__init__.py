"""What a plan means: its vector, rows, noise and price, what goes together and who agrees to it."""
