"""`fedrec keys`: the data owners' key commands and the key authority's process."""
