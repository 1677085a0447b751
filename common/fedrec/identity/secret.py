"""Types for secrets, which keep their content from leaving the process by accident."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from fedrec.errors import KeysError


class Secret:
    """A value that hides its content and cannot be pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, content hidden>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle, copy and multiprocessing."""
        raise TypeError(f"{type(self).__name__} holds secrets and cannot be pickled or copied.")


class SecretKey(Secret):
    """The secret side of a key epoch, as opaque bytes.

    Only `Protection.generate` makes one. It leaves through `export_for_wrapping`, and the caller
    must encrypt the result for one receiver before storing or sending it. `destroy` overwrites the
    bytes held here, but not copies made by Python and SEAL.
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
            KeysError: the key was destroyed.
        """
        if not self._content:
            raise KeysError("This secret key was destroyed.", remedy="Unwrap the epoch's key.")
        return bytes(self._content)

    def destroy(self) -> None:
        """Overwrite the bytes held here, so that the key can no longer be exported."""
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
    """Return a secret's bytes, as `SecretKey.export_for_wrapping` does."""
    return secret if isinstance(secret, bytes) else secret.export_for_wrapping()
