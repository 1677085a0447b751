"""Access tokens: kept as a hash, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from fedrec.errors import SettingsError

__all__ = ["Token"]

FEWEST_CHARS = 16


class Token:
    """What a caller must present; the token itself is not kept.

    Args:
        secret: the token.
    """

    def __init__(self, secret: str) -> None:
        self._sha256 = hashlib.sha256(secret.encode()).digest()

    @classmethod
    def load(cls, path: Path, setting: str) -> Token:
        """Read a token file.

        Raises:
            SettingsError: naming the setting, when the file is missing or too short.
        """
        try:
            secret = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{setting}: the file {path.name!r} cannot be read ({type(error).__name__}).",
                remedy="Write a token of at least 16 random characters into it, mode 0600.",
            ) from None
        if len(secret) < FEWEST_CHARS:
            raise SettingsError(
                f"{setting}: the token in {path.name!r} has {len(secret)} characters, "
                f"expected at least {FEWEST_CHARS}.",
                remedy="Use random characters, for instance those of `openssl rand -hex 32`.",
            )
        return cls(secret)

    def matches(self, presented: str) -> bool:
        """Tell whether this is the token, taking the same time for every wrong one."""
        found = hashlib.sha256(presented.encode(errors="surrogatepass")).digest()
        return hmac.compare_digest(found, self._sha256)
