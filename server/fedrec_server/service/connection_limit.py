"""How many connections the system lets this process hold."""

from __future__ import annotations

import resource

import structlog

__all__ = ["allow_connections"]

OWN_FILES = 200
"""Descriptors that are no client's: the store, uploads in progress, libraries, operators."""


def allow_connections(n_clients: int) -> int:
    """Raise this process's limit of open files as far as it may; return what it is now.

    A client that waits holds one connection, and that one descriptor. Where not all clients of the
    roster fit, those above the limit would wait without a word; so it is said at the start.
    """
    wanted = n_clients + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = hard == resource.RLIM_INFINITY
    target = max(soft, wanted) if endless else hard
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):
            # Some systems allow less than they say.
            pass
    if soft != resource.RLIM_INFINITY and soft < wanted:
        structlog.get_logger().warning(
            "too few open files",
            limit=soft,
            needed=wanted,
            clients=n_clients,
            remedy=f"Clients beyond the limit cannot connect: start with `ulimit -n {wanted}`, or "
            "LimitNOFILE= in a unit of systemd, or --ulimit nofile= of a container.",
        )
    return soft
