"""The demonstration: a whole federation of separate processes on one machine."""
