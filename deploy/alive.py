"""Asks the process that serves its numbers at a port of this machine whether it answers.

`python alive.py PORT` ends with 0 if it does and with 1 if not. Clients and the key authority take
no other connections.
"""

from __future__ import annotations

import http.client
import itertools
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 5.0


def main() -> None:
    """Ask over HTTP and, if that fails, over TLS."""
    port = int(sys.argv[1])
    # The request carries no data and the answer isn't read, so any certificate will do.
    context = ssl._create_unverified_context()
    # A proxy from the environment can't reach this machine's own ports.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    for scheme, host in itertools.product(("http", "https"), ("127.0.0.1", "[::1]")):
        try:
            opener.open(f"{scheme}://{host}:{port}/metrics", timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError:
            # A refusal for the missing token shows that the process is alive.
            pass
        except (OSError, http.client.HTTPException):
            continue
        print("ALIVE")
        return
    sys.exit(f"No process answers at port {port}.")


if __name__ == "__main__":
    main()
