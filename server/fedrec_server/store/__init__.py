"""Durable state: rows in one database, with files next to it."""
