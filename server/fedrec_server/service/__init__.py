"""What clients and operators call over gRPC: who may call, limits of calls, messages as values."""
