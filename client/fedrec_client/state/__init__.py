"""The client's durable state: its folder, its readers, and the records that only grow."""
