"""Read, write and compare addresses of the form `host:port`.

A host is an IPv4 address, an IPv6 address or a name. In an address, IPv6 is in brackets, as in
`[::1]:7447`, but nowhere else in the code. A name beyond ASCII becomes its A-label, which
certificates and DNS use.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection

from fedrec.errors import SettingsError

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""gRPC takes the first of these that is set. It accepts only `http://` as a proxy's scheme."""
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")

_AS_IN = "Write host:port, such as fedrec.example:7447 or [::1]:7447."
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_ZONE = re.compile(r"[A-Za-z0-9._~-]+")
_PORT = re.compile(r"[0-9]{1,5}")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_MOST_NAME_CHARS = 253


def split_address(address: str, name: str = "", *, to_call: bool = False) -> tuple[str, int]:
    """Split `host:port` into the host, without brackets, and the port.

    Args:
        name: the setting or flag that has it, for errors.
        to_call: whether others call it. Then port 0 and a wildcard address are refused.

    Raises:
        SettingsError: `address` is not a valid address.
    """
    if "://" in address:
        raise _refused(name, address, "has a scheme.", f"Omit it. {_AS_IN}")
    if address.startswith("[") and address.endswith("]"):
        raise _refused(name, address, "has no port.", _AS_IN)
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and host != f"[{bare}]":
        raise _refused(name, address, "has an IPv6 address without brackets.", _AS_IN)
    if not host or not port.isdecimal():
        raise _refused(name, address, "is not host:port.", _AS_IN)
    if not _PORT.fullmatch(port) or not to_call <= int(port) <= 65_535:
        raise _refused(name, address, f"has no port from {to_call:d} to 65535.", _AS_IN)
    return plain_host(host, name, to_call=to_call), int(port)


def plain_host(host: str, name: str = "", *, to_call: bool = False) -> str:
    """Return a host in the form that all code compares: without brackets, a name in ASCII.

    Args:
        name: the setting or flag that has it, for errors.
        to_call: whether others call it. Then a wildcard address is refused.

    Raises:
        SettingsError: `host` is neither an address nor a name.
    """
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        found = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return _plain_name(host, name)
    if bracketed and found.version == 4:
        raise _refused(name, host, "has brackets, which are for IPv6.", "Omit them.")
    zone = found.scope_id if isinstance(found, ipaddress.IPv6Address) else None
    if zone is not None and not _ZONE.fullmatch(zone):
        raise _refused(
            name, host, "has a zone without an interface.", "Write it as in fe80::1%eth0."
        )
    if to_call and _is_of_many(found):
        raise _refused(
            name,
            host,
            "cannot be called: it is not the address of a single machine.",
            "Write the name or the address at which clients reach the coordinator, such as "
            "fedrec.example:7447.",
        )
    return str(found)


def address_to_call(address: str, name: str = "") -> str:
    """Return an address that can be called, `host:port`, in its canonical form.

    Raises:
        SettingsError: the address can't be called. `name` is its setting or flag.
    """
    return written_address(*split_address(address, name, to_call=True))


def written_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_own_address(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def reached_from_here(host: str) -> str:
    """Return the address by which this machine itself reaches a listening host."""
    return _EVERYWHERE.get(host, host)


def names_server(header: str, names: Collection[str]) -> bool:
    """Return whether a Host header names a server by its address or one of its names.

    A page that makes its own name point to this machine (DNS rebinding) sends that name.

    Args:
        names: the server's names, in lower case, without a dot at the end.
    """
    host = header.lower()
    if host.startswith("["):
        host = host.partition("]")[0].removeprefix("[")
    else:
        host = host.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".") in names
    return True


def _is_of_many(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address means several machines, even if IPv6 wraps it."""
    plain = getattr(address, "ipv4_mapped", None) or address
    return plain.is_unspecified or plain.is_multicast or plain == _BROADCAST


def _plain_name(host: str, name: str) -> str:
    """Return a name with A-labels for its labels beyond ASCII."""
    found = host.removesuffix(".")
    if not found.isascii():
        import idna

        try:
            found = idna.encode(found, uts46=True).decode()
        except idna.IDNAError:
            found = ""
    labels = found.split(".")
    if not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
        raise _refused(
            name,
            host,
            "is not a host.",
            "Use an IP address, or a name of letters, digits and hyphens between dots, such as "
            "fedrec.example.",
        )
    if len(found) > _MOST_NAME_CHARS:
        raise _refused(name, host, "is too long for a host name.", "Use a shorter one.")
    return found


def _refused(name: str, value: str, why: str, remedy: str) -> SettingsError:
    return SettingsError(f"{name}{': ' if name else ''}{value!r} {why}", remedy=remedy)


def proxy_words(address: str) -> str:
    """Return which environment variable names a proxy for a failed call, as text.

    Return empty if none does, as for this machine's own addresses.
    """
    host, _ = split_address(address)
    if is_own_address(host):
        return ""
    used = next((name for name in _PROXIES if name in os.environ), "")
    if os.environ.get(used, "").lower().startswith("http://"):
        listed = next((os.environ[name] for name in _EXCEPTIONS if name in os.environ), "")
        if host.lower().endswith(tuple(filter(None, listed.lower().replace(" ", "").split(",")))):
            return ""
        return (
            f"{used} is set, so the call goes through that proxy, which must allow CONNECT. To "
            f"call {host} directly, add it to no_proxy."
        )
    alike = (*_PROXIES, "all_proxy")
    unused = next((name for name in os.environ if name.lower() in alike and os.environ[name]), "")
    if not unused:
        return ""
    return (
        f"{unused} is set, but not used: only {', '.join(_PROXIES)} are read, in lower case, and "
        "the proxy must begin with http://."
    )
