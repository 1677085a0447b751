"""`fedrec keys`: what data owners do with keys, and the key authority's process."""
