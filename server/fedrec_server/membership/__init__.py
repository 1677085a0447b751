"""Who belongs to the run, who is there, and what is checked of their word."""
