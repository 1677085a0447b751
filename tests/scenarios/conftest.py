"""Scenarios run over the federations of the integration tests."""

from __future__ import annotations

from integration.conftest import found, loop, quiet

__all__ = ["found", "loop", "quiet"]
