"""Identities, the signed list of members, and the secrets that members share.

`public`, `roster` and `epoch` hold no secret type and are what a coordinator imports. `identity`,
`epoch_secrets` and `authority` belong to the data owners.
"""
