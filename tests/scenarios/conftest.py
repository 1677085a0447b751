"""The scenarios by which security is judged, one file each, over what the integration tests use."""

from integration.conftest import found, loop, quiet, revealing

__all__ = ["found", "loop", "quiet", "revealing"]
