"""Who is there, and who said that it ended."""

from __future__ import annotations

from world.clock import FakeClock

from fedrec.ids import ClientId
from fedrec_server.run.presence import BACK_SECONDS, LIVE_SECONDS, Presence

NORTH, SOUTH = ClientId("a" * 64), ClientId("b" * 64)


def here() -> tuple[FakeClock, Presence]:
    clock = FakeClock()
    presence = Presence(clock)
    for client in (NORTH, SOUTH):
        presence.heard(client)
    return clock, presence


def test_a_goodbye_counts_at_once_and_silence_after_a_while():
    clock, presence = here()
    presence.ended(NORTH)
    assert presence.live() == {SOUTH}
    clock.advance(LIVE_SECONDS + 1)
    assert presence.live() == frozenset()
    said = presence.goodbye_of(NORTH)
    assert said is not None and said.had_begun and presence.now() - said.at == LIVE_SECONDS + 1
    assert presence.goodbye_of(SOUTH) is None


def test_who_comes_back_is_simply_back():
    clock, presence = here()
    presence.ended(NORTH)
    clock.advance(BACK_SECONDS - 1)
    assert presence.gone() == frozenset(), "it may be started again at once"
    presence.joined(NORTH)
    assert presence.goodbye_of(NORTH) is None
    clock.advance(BACK_SECONDS)
    assert presence.gone() == frozenset()
    presence.heard(NORTH)
    assert NORTH in presence.live()
    presence.ended(NORTH)
    clock.advance(BACK_SECONDS)
    assert presence.gone() == {NORTH}
    presence.heard(NORTH)
    assert presence.gone() == frozenset() and NORTH in presence.live()


def test_the_poll_of_a_client_that_ended_does_not_bring_it_back():
    _, presence = here()
    with presence.waiting(NORTH):
        assert presence.waiters == {NORTH}
        presence.ended(NORTH)
        assert presence.waiters == frozenset()
        assert presence.live() == {SOUTH}
    assert presence.live() == {SOUTH}
    with presence.waiting(NORTH):
        assert presence.live() == {NORTH, SOUTH}
    assert presence.live() == {NORTH, SOUTH}


def test_an_error_before_the_first_question_is_one_of_starting():
    clock, presence = here()
    presence.ended(NORTH, "training")
    said = presence.goodbye_of(NORTH)
    assert said is not None and said.had_begun
    clock.advance(1.0)
    presence.joined(NORTH)
    presence.ended(NORTH, "data")
    said = presence.goodbye_of(NORTH)
    assert said is not None and not said.had_begun and said.code == "data"
    presence.ended(NORTH, "data")
    again = presence.goodbye_of(NORTH)
    assert again is not None and not again.had_begun
    never = ClientId("c" * 64)
    presence.ended(never, "keys")
    found = presence.goodbye_of(never)
    assert found is not None and not found.had_begun
