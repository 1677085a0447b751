"""The scenarios by which security is judged, one file each, over what the integration tests use."""

from __future__ import annotations
