"""What a client and the key authority share: each follows a run that a coordinator leads.

A link, a membership, the shared model, the pull loop and a stored state. The coordinator has none.
"""
