"""A settings file: its schema, how it is read and explained, and a first one."""
