"""Code that a client and the key authority share: each follows a run that a coordinator leads.

The link, the membership, the shared model, the pull loop and the stored state. The coordinator uses
none of them.
"""
