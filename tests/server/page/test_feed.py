"""The page's feed and history, and who may read them."""

import asyncio
import json

import pytest
from world.clock import FakeClock
from world.engine import Bench, running

from fedrec.errors import StorageError
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec_server.page import feed as feeds
from fedrec_server.page.feed import KEPT_EVENTS, Feed, RunHistory
from fedrec_server.page.serving import (
    LINK_SECONDS,
    MOST_LINKS,
    MOST_SESSIONS,
    SESSION_SECONDS,
    Access,
)
from fedrec_server.store.store import Entry


async def test_a_journal_that_could_not_be_read_is_read_again(tmp_path, monkeypatch):
    """The last word on a run, after which nothing wakes a watcher."""
    monkeypatch.setattr(feeds, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(feeds, "PAUSE_SECONDS", 0.0)

    async with running(Bench.of(3), tmp_path) as engine:
        await engine.stop_run(at_once=True)
        read, failures = engine.run.store.entries, [1, 2, 3]

        def entries(after, limit):
            if failures:
                failures.pop()
                raise StorageError("The disk is busy.")
            return read(after, limit)

        monkeypatch.setattr(engine.run.store, "entries", entries)
        feed = Feed(engine)
        following = asyncio.ensure_future(feed.follow())
        messages = feed.stream("")
        seen = b""
        while b"run finished" not in seen:
            seen = await asyncio.wait_for(anext(messages), 20)
        following.cancel()
        await messages.aclose()


def entry(sequence, kind, round_id=0, /, **fields):
    return Entry(
        sequence=sequence,
        unix_seconds=1000.0 + sequence,
        kind=kind,
        round=RoundId(round_id),
        fields_json=json.dumps(fields),
    )


def metrics(**sums):
    """Return a segment with these sums; a dot of a name is written __."""
    given = {name.replace("__", "."): value for name, value in sums.items()}
    return [given.get(name, 0) for name in METRIC_NAMES]


def published(sequence, round_id, **more):
    return entry(
        sequence,
        "round published",
        round_id,
        kind="train",
        counted=3,
        bytes_received=300,
        bytes_published=50,
        seconds=1.5,
        **more,
    )


def test_a_round_is_a_point_with_what_its_sums_say():
    history = RunHistory()
    # 4 users trained, with a loss of 3 in all (units of 2^-15); of 8 ranked users 2 hit, and gains
    # are 1 in all (units of 2^-20).
    history.take(
        published(
            7,
            2,
            metrics=metrics(
                participants=4,
                loss=3 << 15,
                model__validation__users=8,
                model__validation__hits=2,
                model__validation__gain=1 << 20,
            ),
        )
    )
    (point,) = history.since(-1).rounds
    assert (point.round, point.counted, point.bytes_received, point.seconds) == (2, 3, 300, 1.5)
    assert (point.loss, point.validation_hr, point.validation_ndcg) == (0.75, 0.25, 0.125)
    assert point.test_hr is None


def test_what_clients_report_later_is_added_and_told_again():
    history = RunHistory()
    history.take(published(3, 2))
    assert history.since(2).rounds[0].loss is None
    history.take(
        entry(4, "round measured", 2, rows=5, metrics=metrics(participants=2, loss=1 << 15))
    )
    (point,) = history.since(3).rounds
    assert (point.sequence, point.loss) == (4, 0.5)


def test_sums_of_metrics_and_single_updates_are_no_events():
    history = RunHistory()
    history.take(entry(1, "round opened", 1, kind="count", asked=3))
    history.take(entry(2, "update counted", 1, bytes=100))
    history.take(published(3, 1, rows=5, metrics=metrics()))
    news = history.since(-1)
    assert [event.kind for event in news.events] == ["round opened", "round published"]
    assert "metrics" not in news.events[1].fields
    assert news.last == 3


def test_whoever_was_away_gets_what_came_after_and_nothing_twice():
    history = RunHistory()
    for sequence in range(1, 6):
        history.take(published(sequence, sequence))
    news = history.since(3)
    assert not news.whole
    assert [point.round for point in news.rounds] == [4, 5]
    assert [event.sequence for event in news.events] == [4, 5]
    assert history.since(5).rounds == () == history.since(5).events


def test_a_page_without_anything_or_of_a_later_folder_gets_everything():
    history = RunHistory()
    history.take(published(1, 1))
    for before in (-1, 2):
        news = history.since(before)
        assert news.whole
        assert len(news.rounds) == len(news.events) == 1


def test_events_are_forgotten_and_rounds_are_not():
    history = RunHistory()
    for sequence in range(1, KEPT_EVENTS + 11):
        history.take(published(sequence, sequence))
    news = history.since(-1)
    assert len(news.rounds) == KEPT_EVENTS + 10
    assert len(news.events) == KEPT_EVENTS
    # The tenth is the last that is forgotten: who has it misses nothing, who has less would.
    assert not history.since(10).whole
    assert history.since(9).whole


def test_news_are_one_line_of_json():
    history = RunHistory()
    history.take(published(1, 1))
    text = history.since(-1).to_json()
    assert "\n" not in text
    assert json.loads(text)["rounds"][0]["bytes_published"] == 50


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def access(clock):
    return Access(clock)


def opened(access):
    session = access.open_session(access.new_link())
    assert session is not None
    return session


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
