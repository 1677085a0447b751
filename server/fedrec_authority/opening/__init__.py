"""Opening the sums of rounds: the only use of the decryption key."""
