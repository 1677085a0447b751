"""A page for a browser: a run as it goes on, beside the coordinator's gRPC port."""
