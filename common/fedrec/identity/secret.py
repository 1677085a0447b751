"""Secret types: what they hold does not leave the process by accident."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from fedrec.errors import KeysError


class Secret:
    """A value that shows nothing of itself and refuses to be pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, content hidden>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse what pickle, copy and multiprocessing would do."""
        raise TypeError(f"{type(self).__name__} holds secrets; it is neither pickled nor copied.")


class SecretKey(Secret):
    """The secret side of a key epoch, as opaque bytes.

    Made by `Protection.generate` only. It leaves through `export_for_wrapping` alone, whose
    result must be encrypted to one receiver before it is stored or sent. `destroy` overwrites
    the bytes held here; Python and SEAL may have made copies that nobody can overwrite.
    """

    __slots__ = ("_content",)
    _content: bytearray

    def __init__(self) -> None:
        raise TypeError("a SecretKey is made by Protection.generate")

    @classmethod
    def _holding(cls, content: bytes) -> SecretKey:
        secret = object.__new__(cls)
        secret._content = bytearray(content)
        return secret

    def export_for_wrapping(self) -> bytes:
        """Return the self-contained bytes that `Protection.member` accepts.

        Raises:
            KeysError: after `destroy`.
        """
        if not self._content:
            raise KeysError("This secret key was destroyed.", remedy="Unwrap the epoch's key.")
        return bytes(self._content)

    def destroy(self) -> None:
        """Overwrite the bytes held here; the key cannot be exported any more."""
        self._content[:] = bytes(len(self._content))
        self._content.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()


def exported(secret: bytes | SecretKey) -> bytes:
    """Return a secret's bytes; see `SecretKey.export_for_wrapping`."""
    return secret if isinstance(secret, bytes) else secret.export_for_wrapping()
