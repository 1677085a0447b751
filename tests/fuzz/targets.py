"""Every parser of bytes that a peer controls, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fuzz.ciphertexts import CIPHERTEXTS
from fuzz.documents import DOCUMENTS
from fuzz.messages import MESSAGES
from fuzz.target import Target

TARGETS: dict[str, Callable[[], Target]] = {
    **{name: (lambda found=found: found) for name, found in MESSAGES.items()},  # type: ignore[misc]
    **DOCUMENTS,
    **CIPHERTEXTS,
}


@cache
def target(name: str) -> Target:
    """Return a target with its seeds, made once."""
    return TARGETS[name]()
