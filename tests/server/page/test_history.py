"""What a page is told of a run's past: points and events, put together from the journal."""

from __future__ import annotations

import json

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec_server.page.feed import KEPT_EVENTS, RunHistory
from fedrec_server.store.store import Entry


def entry(sequence: int, kind: str, round_id: int = 0, /, **fields: object) -> Entry:
    return Entry(
        sequence=sequence,
        unix_seconds=1000.0 + sequence,
        kind=kind,
        round=RoundId(round_id),
        fields_json=json.dumps(fields),
    )


def metrics(**sums: int) -> list[int]:
    """Return a segment with these sums; a dot of a name is written __."""
    given = {name.replace("__", "."): value for name, value in sums.items()}
    return [given.get(name, 0) for name in METRIC_NAMES]


def published(sequence: int, round_id: int, **more: object) -> Entry:
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
