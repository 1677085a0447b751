"""One event loop for all coordinators, and federations that end with their test."""

from pathlib import Path

import pytest
import structlog
from world.bench import Bench
from world.parties import Federation, Loop

from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.link import Link
from fedrec_authority.delivery import AuthorityEvent
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import Revealer
from fedrec_client.round.local_model import LocalModel


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


class Spoiler:
    """Adds what 51 users may to a value of its training rounds; there are 40.

    Attributes:
        folder: of the client that does.
        rounds: how many of its training rounds it still spoils.
    """

    def __init__(self, monkeypatch):
        self.folder: Path | None = None
        self.rounds = 1
        honest = LocalModel.contribute

        def contribute(model, kind, participating):
            made = honest(model, kind, participating)  # type: ignore[arg-type]
            if kind == "train" and model._store.folder == self.folder and self.rounds:
                self.rounds -= 1
                layout = model._learner.server.travelling.layout(kind, model.shared)
                made.vector[0] = 51 * layout.tensors[0].bound
            return made

        monkeypatch.setattr(LocalModel, "contribute", contribute)


@pytest.fixture
def spoiler(monkeypatch):
    return Spoiler(monkeypatch)
