"""The gRPC services for clients and operators: callers, limits, and messages as values."""
