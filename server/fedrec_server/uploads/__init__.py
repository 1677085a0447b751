"""From a client's chunks to a counted update: received, made durable, added to the round's sum."""
