"""A coordinator that is stopping tells its members so, whatever key epoch the run is in."""

from __future__ import annotations

import asyncio

import pytest
from server.support.browsing import with_page
from server.support.federations import Bench, credentials, epoch_of, identity
from server.support.serving import serving

from fedrec.errors import CoordinatorStopping, FedrecError, NotInRoster
from fedrec_server.page.serving import Page

JOINED = 3
"""A member of epoch 2 that is none of the epoch in the coordinator's settings."""


def test_a_stop_is_no_refusal_while_the_page_closes(tmp_path, monkeypatch):
    """Browsers may keep the page open for seconds; members call meanwhile."""
    bench, told = Bench.of(3), []
    closed = Page.close
    with serving(bench, tmp_path, prepare=with_page()) as found, found.link(JOINED) as link:
        later = epoch_of(bench.federation.protection, 4, number=2)
        found.do(found.coordinator.engine.rotation.install(later.to_json()))
        me = identity(JOINED).client_id
        assert link.federation(me).epoch == 2

        def ask() -> None:
            with pytest.raises(FedrecError) as refused:
                link.federation(me)
            told.append(refused.value)

        async def close(page: Page) -> None:
            await asyncio.to_thread(ask)
            await closed(page)

        monkeypatch.setattr(Page, "close", close)
        found.stop()
    (error,) = told
    assert isinstance(error, CoordinatorStopping), error
    assert str(error).startswith("The coordinator is stopping.") and not error.incident


def test_a_refusal_names_the_epoch_that_it_is_about(tmp_path):
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        later = epoch_of(bench.federation.protection, 2, number=2)
        with found.link(2) as removed:
            assert removed.federation(identity(2).client_id).epoch == 1
            found.do(found.coordinator.engine.rotation.install(later.to_json()))
            with pytest.raises(NotInRoster) as refused:
                removed.federation(identity(2).client_id)
            assert refused.value.epoch == 2
        with found.link(credentials(7)) as stranger, pytest.raises(NotInRoster) as refused:
            stranger.federation(identity(7).client_id)
        assert refused.value.epoch == 2
