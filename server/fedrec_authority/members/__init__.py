"""Members of a federation: invitations, the register, cells, and operators."""
