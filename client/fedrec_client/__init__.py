"""The client: private data, local training, keys, and the pull loop."""
