"""Commands are called in the test's own process."""
