"""One-time links and the sessions that they open."""

from __future__ import annotations

import pytest
from world.clock import FakeClock

from fedrec_server.page.serving import (
    LINK_SECONDS,
    MOST_LINKS,
    MOST_SESSIONS,
    SESSION_SECONDS,
    Access,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def access(clock: FakeClock) -> Access:
    return Access(clock)


def opened(access: Access) -> str:
    session = access.open_session(access.new_link())
    assert session is not None
    return session


def test_a_link_is_good_once(access):
    link = access.new_link()
    session = access.open_session(link)
    assert session is not None and session != link
    assert access.allows(session)
    assert access.open_session(link) is None


def test_a_link_is_no_session_and_a_session_no_link(access):
    link = access.new_link()
    assert not access.allows(link)
    assert access.open_session(opened(access)) is None


@pytest.mark.parametrize("wrong", ["", "x", "\udcff", "é" * 200])
def test_other_words_open_nothing(access, wrong):
    access.new_link()
    assert access.open_session(wrong) is None
    assert not access.allows(wrong)


def test_links_and_sessions_end(access, clock):
    late, in_time = access.new_link(), access.new_link()
    clock.advance(LINK_SECONDS - 1)
    session = access.open_session(in_time)
    assert session is not None
    clock.advance(1)
    assert access.open_session(late) is None
    clock.advance(SESSION_SECONDS - 2)
    assert access.allows(session)
    clock.advance(1)
    assert not access.allows(session)


def test_the_oldest_make_room(access):
    links = [access.new_link() for _ in range(MOST_LINKS + 1)]
    assert access.open_session(links[0]) is None
    assert access.open_session(links[1]) is not None
    first = opened(access)
    for _ in range(MOST_SESSIONS):
        last = opened(access)
    assert access.allows(last)
    assert not access.allows(first)


def test_tokens_are_long_and_differ(access):
    links = {access.new_link() for _ in range(MOST_LINKS)}
    assert len(links) == MOST_LINKS
    # 32 random bytes, six bits a character.
    assert all(len(link) == 43 for link in links)
