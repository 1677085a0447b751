"""`fedrec client serve`: this client's recommendations over HTTP, on its own machine."""
