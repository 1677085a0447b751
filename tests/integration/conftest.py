"""One event loop for all coordinators, and federations that end with their test."""

import pytest
import structlog
from world.bench import Bench
from world.parties import Federation, Loop

from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.link import Link
from fedrec_authority.delivery import AuthorityEvent
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import Revealer


@pytest.fixture(autouse=True)
def quiet():
    """Log errors only: a failing test shows them, not the life of three clients."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))


@pytest.fixture(scope="session")
def loop():
    """The loop on which coordinators live."""
    made = Loop.shared()
    yield made
    made.close()


@pytest.fixture
def found(tmp_path, loop):
    """Start a federation; it is stopped with the test, however the test ends.

    `prepare` is called with the bench before the coordinator starts; `bench` makes it.
    """
    started: list[Federation] = []

    def start(plan, n_clients=3, **options):
        folder = tmp_path / f"federation-{len(started)}"
        folder.mkdir()
        bench = options.pop("bench", Bench).make(folder, plan, n_clients)
        options.pop("prepare", lambda bench: None)(bench)
        started.append(Federation(bench, loop, **options))
        return started[-1]

    yield start
    for federation in started:
        federation.stop()


@pytest.fixture
def revealing():
    """Open a federation's sums in a thread; the list says what happened."""
    started: list[Revealer] = []

    def start(federation, keys="keys", wrap=lambda link: link, *, new_run=False):
        workspace = federation.bench.workspace
        events: list[AuthorityEvent] = []
        folder = AuthorityFolder(workspace.folder / keys)
        link: Link = GrpcLink(federation.address, folder.revealer_credentials())
        made = Revealer(folder, wrap(link), events.append, new_run=new_run, jitter=lambda: 0.1)
        started.append(made)
        started[-1].start()
        return events

    start.stop = lambda: started.pop().close()  # type: ignore[attr-defined]
    yield start
    for revealer in started:
        revealer.close()
