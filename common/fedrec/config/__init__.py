"""Settings: their schema, how they are read, and what the parties must agree on."""
