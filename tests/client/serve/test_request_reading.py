"""Requests are read strictly."""

from __future__ import annotations

import json

import pytest

from fedrec_client.serve.request_reading import (
    MOST_IDS,
    RECOMMEND_FIELDS,
    SIMILAR_FIELDS,
    Recommend,
    Refusal,
    Similar,
    from_body,
    from_query,
    recommend_question,
    similar_question,
)


def test_an_address_with_everything():
    given = from_query(
        b"user=a%2Fb+c&n=3&exclude_seen=false&exclude=x&exclude=%C3%A9&candidates=y",
        RECOMMEND_FIELDS,
    )
    assert recommend_question(given) == Recommend(
        user="a/b c", n=3, exclude_seen=False, exclude=("x", "é"), candidates=("y",)
    )


def test_a_body_with_everything():
    body = {"history": ["x"], "n": 1, "ignore_unknown": True, "candidates": []}
    given = from_body(json.dumps(body).encode(), RECOMMEND_FIELDS)
    assert recommend_question(given) == Recommend(
        history=("x",), n=1, ignore_unknown=True, candidates=()
    )
    assert similar_question(from_body(b'{"item": "x"}', SIMILAR_FIELDS)) == Similar(item="x")


@pytest.mark.parametrize(
    "query",
    [
        b"user=1&n=0",
        b"user=1&n=1001",
        b"user=1&n=1_0",
        b"user=1&n=+1",
        b"user=1&n=" + b"9" * 5000,
        b"user=1&n=\xb2",
        b"user=1&n=1&n=2",
        b"user=1&user=2",
        b"user=",
        b"user=1&exclude_seen=yes",
        b"user=1&exclude=",
        b"user",
        b"user=%ff",
        b"user=1&" + b"&".join([b"exclude=1"] * 2000),
    ],
)
def test_addresses_that_are_refused(query):
    with pytest.raises(Refusal) as refused:
        from_query(query, RECOMMEND_FIELDS)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"user": 196}',
        b'{"user": ""}',
        b'{"user": "\\ud800"}',
        b'{"user": "1", "n": 1.0}',
        b'{"user": "1", "n": true}',
        b'{"user": "1", "n": "5"}',
        b'{"user": "1", "n": NaN}',
        b'{"user": "1", "exclude": "50"}',
        b'{"user": "1", "exclude": [50]}',
        b'{"user": "1", "exclude_seen": 0}',
        json.dumps({"history": ["1"] * (MOST_IDS + 1)}).encode(),
    ],
)
def test_bodies_that_are_refused(body):
    with pytest.raises(Refusal) as refused:
        from_body(body, RECOMMEND_FIELDS)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize(
    "given",
    [{}, {"user": "1", "history": ("2",)}, {"recent": ("2",)}, {"history": (), "recent": ("1",)}],
)
def test_a_user_or_a_history(given):
    with pytest.raises(Refusal):
        recommend_question(given)


def test_an_unknown_field_names_the_nearest():
    with pytest.raises(Refusal, match="Did you mean exclude_seen"):
        from_query(b"user=1&exclude_sen=true", RECOMMEND_FIELDS)
    with pytest.raises(Refusal) as refused:
        from_body(b'{"usr": "1"}', RECOMMEND_FIELDS)
    assert "candidates" in refused.value.remedy
    with pytest.raises(Refusal, match="An item is needed"):
        similar_question({})
