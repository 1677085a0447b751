"""Who a client is, whom the data owners listed, and what only they can read.

`public`, `roster` and `epoch` hold no secret type and are what a coordinator imports;
`identity`, `epoch_secrets` and `authority` belong to the data owners.
"""
