"""The property that all secret types share: they do not leave the process by accident."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Secret:
    """A value that shows nothing of itself and refuses to be pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, content hidden>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse what pickle, copy and multiprocessing would do."""
        raise TypeError(f"{type(self).__name__} holds secrets; it is neither pickled nor copied.")
