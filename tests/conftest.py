"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import sys
from collections.abc import Generator, Iterator

import hypothesis
import pytest

# Before any test imports grpc.
import fedrec.wire  # noqa: F401
from fedrec.data import FetchedDataset, Interactions, UserSplit, fetch_ml_100k, leave_one_out

# What a conformance suite found wrong is shown as in any test.
pytest.register_assert_rewrite("conformance")

# A shell that starts the suite in the background ignores SIGINT for it and for all its children,
# and nohup ignores SIGHUP. The tests of signals need both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# `make test-fast` takes this one: fewer examples of each property, where a test names no number.
hypothesis.settings.register_profile("fast", max_examples=10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: garbage is looked for among what tests make."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What reads MovieLens 100K is slow: the fast part runs without it.

    The file that takes longest in `make test-more` comes first. Last, it would run alone.
    """
    items.sort(key=lambda item: item.path.name != "test_scenario_24_histories.py")
    for item in items:
        if any(name.startswith("ml_100k") for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Commands send the log to their own stderr, which is closed when a test is over."""
    yield
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.fixture(scope="session")
def ml_100k() -> FetchedDataset:
    """MovieLens 100K through the product's own fetch; needs a package index the first time.

    It is read once for all tests; whoever tests the reading reads it anew.
    """
    return fetch_ml_100k()


@pytest.fixture(scope="session")
def ml_100k_interactions(ml_100k: FetchedDataset) -> Interactions:
    """Its 100000 interactions in the file's order."""
    return ml_100k.read()[0]


@pytest.fixture(scope="session")
def ml_100k_users(ml_100k: FetchedDataset, ml_100k_interactions: Interactions) -> UserSplit:
    """Its 943 users, the last two interactions of each held out."""
    return leave_one_out(ml_100k_interactions, ml_100k.catalogue)
