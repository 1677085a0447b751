"""The coordinator as this client reaches it: connecting, trying again, counting bytes, stopping."""
