"""The last word of a client: it ends, and rounds need not wait for it.

Said once and without patience: a client that is to stop stops, whether the coordinator hears of
it or not. An older coordinator does not know the call, and learns from silence as it did before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fedrec.errors import FedrecError
from fedrec.ids import ClientId
from fedrec.wire.link import Link
from fedrec_client.link.stopping import Stopped

__all__ = ["saying_goodbye"]

PATIENCE_SECONDS = 3.0


@contextmanager
def saying_goodbye(reach: Callable[[], Link], client_id: ClientId) -> Iterator[None]:
    """Tell the coordinator how the client's work in this block ended.

    Nothing is said where the process is to end now, as at a second Ctrl-C.

    Args:
        reach: returns the link to the coordinator, opened by now or at the end.
    """
    try:
        yield
    except Stopped:
        _say(reach, client_id, "")
        raise
    except FedrecError as error:
        _say(reach, client_id, error.code)
        raise
    else:
        _say(reach, client_id, "")


def _say(reach: Callable[[], Link], client_id: ClientId, code: str) -> None:
    """Say it in a thread of its own, so that signals interrupt waiting only."""

    def call() -> None:
        with suppress(FedrecError):
            reach().goodbye(client_id, code)

    thread = threading.Thread(target=call, name="goodbye", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
