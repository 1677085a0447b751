"""The parts of a run in memory: threads, waiting calls, the journal and the model's quality."""
