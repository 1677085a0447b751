"""What the client keeps: its folder, who reads it, and the records that only grow."""
