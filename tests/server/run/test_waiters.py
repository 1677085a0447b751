"""News that comes while a waiter looks, and does not wait as yet, is not lost."""

from __future__ import annotations

from fedrec_server.run.work import Waiters


async def test_news_between_two_waits_ends_the_next_one():
    waiters: Waiters[str] = Waiters()
    with waiters.listening("one") as news:
        waiters.wake(["one"])
        assert await news.wait(60.0)
        assert await news.wait(60.0), "what was told stands until it is looked at"
        news.forget()
        assert not await news.wait(0.0)


async def test_only_those_who_are_meant_hear():
    waiters: Waiters[str] = Waiters()
    with (
        waiters.listening("one") as first,
        waiters.listening("one") as again,
        waiters.listening("two") as other,
    ):
        waiters.wake(["one", "nobody"])
        assert await first.wait(0.0) and await again.wait(0.0)
        assert not await other.wait(0.0)
        waiters.wake_all()
        assert await other.wait(0.0)
    assert not waiters, "who left is forgotten"
