"""The data owners' side of a federation's keys: who is a member, and which epochs there were.

It runs on a machine of the data owners and calls the coordinator; nobody calls it.
"""
