"""What can be said of a plan before it runs: what it promises, and where its figures flatter."""
