"""Addresses at which something listens, as settings write them."""

from __future__ import annotations

import ipaddress

from fedrec.errors import SettingsError

__all__ = ["is_own_address", "split_address", "written_address"]


def split_address(address: str, name: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of `host:port`.

    Args:
        name: what the setting or flag is called that says so.

    Raises:
        SettingsError: it is none.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise SettingsError(
            f"{name}: {address!r} is no address.",
            remedy="Write host:port, as in 127.0.0.1:9464.",
        )
    return host, int(port)


def written_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets where the host is an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_own_address(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
