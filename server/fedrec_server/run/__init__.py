"""What one run consists of in memory: threads, waiting calls, journal, quality of the model."""
