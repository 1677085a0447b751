"""The coordinator's peers: admission, presence, key epochs, and restored folders."""
