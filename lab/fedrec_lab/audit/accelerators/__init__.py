"""Compiled code of audits."""
