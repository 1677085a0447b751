"""Settings files: their schema, validation and explanation, and a starter file."""
