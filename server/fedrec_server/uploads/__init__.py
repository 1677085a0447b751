"""From a client's chunks to a counted update: receive it, make it durable, add it to the sum."""
