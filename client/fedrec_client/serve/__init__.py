"""`fedrec client serve`: a client's recommendations over HTTP on its own machine."""
