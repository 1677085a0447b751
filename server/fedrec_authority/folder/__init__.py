"""The authority's state folder, its backups, and recovery files for a lost coordinator."""
