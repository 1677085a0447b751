"""The key authority, run by the data owners: members, key epochs and opened sums.

It runs on a machine of the data owners and calls the coordinator. It accepts no connections.
"""
