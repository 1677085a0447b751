"""What a client is told when it asks what to do, and when it is woken."""
