"""What uvicorn costs by itself: one route without a framework that always gives the same answer.

    python benchmarks/bare_route.py

The first line on stdout is a JSON object with the address, as `fedrec client serve` prints it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import uvicorn

ANSWER = b"{" + b" " * 900 + b"}"
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def route(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


def main() -> None:
    """Serve until SIGTERM."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        route, http="httptools", loop="uvloop", lifespan="off", log_level="error", access_log=False
    )
    print(json.dumps({"address": f"http://127.0.0.1:{listening.getsockname()[1]}"}), flush=True)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main()
