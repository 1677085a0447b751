"""Taking part in rounds: training, protecting, sending, and following what is published."""
