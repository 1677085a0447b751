"""Open the sums of rounds. Nothing else uses the decryption key."""
