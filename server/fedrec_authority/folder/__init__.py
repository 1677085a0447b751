"""The authority's state folder, its copies, and what a lost coordinator is made anew from."""
