"""Compiled kernels, one file each: optional, at least twice as fast as what they stand in for.

An accelerator trains users on a processor as the algorithm of its name does, one user after the
other with everything of that user in the cache. A user's result depends on that user alone, and
sums are integers: hence neither on threads, chunks and order nor on whether code was compiled
just now or comes from the cache. What all of them share is in `compiled`.
"""
