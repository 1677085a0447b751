"""How the protocol stands beside figures that were measured under it."""

from __future__ import annotations

__all__ = ["explained", "marked"]

_UNKNOWN = (
    "whether this flatters every method is not known: only the last round measures the references, "
    "and the run has not come to it. Compare under full."
)


def marked(protocol: str, caution: str | None) -> str:
    """Return a protocol's name as it stands over figures: "(!)" flatters, "(?)" is not known.

    Args:
        caution: what has to stand beside it; empty for nothing, None where nobody knows.
    """
    if not protocol or caution == "":
        return protocol
    return f"{protocol} (!)" if caution else f"{protocol} (?)"


def explained(protocol: str, caution: str | None) -> str:
    """Return the marked name with its caution behind it, if there is one."""
    heading = marked(protocol, caution)
    return heading if heading == protocol else f"{heading}: {caution or _UNKNOWN}"
