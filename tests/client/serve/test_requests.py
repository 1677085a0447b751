"""Requests to a client's service: who may ask, how they're read, what the document says."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from client.serve.asking import OWN, ask

from fedrec_client.serve.openapi import STYLE, document, page_of
from fedrec_client.serve.request_reading import (
    MOST_IDS,
    RECOMMEND_FIELDS,
    REFUSALS,
    SIMILAR_FIELDS,
    Gate,
    Recommend,
    Refusal,
    Similar,
    from_body,
    from_query,
    recommend_question,
    similar_question,
)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7480", "localhost:1", "LOCALHOST", "[::1]:7480", "10.0.0.5:80"],
)
def test_addresses_and_localhost(host):
    Gate().check([(b"host", host.encode())])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7480", "", "a@127.0.0.1"],
)
def test_other_names(host):
    gate = Gate()
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            gate.check([(b"host", host.encode())])
        assert refused.value.code == "foreign_host"


def test_hosts_are_named_once():
    for hosts in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        with pytest.raises(Refusal):
            Gate().check(hosts)


def test_a_name_that_was_allowed():
    Gate(["Films.Example."]).check([(b"host", b"films.example:443")])


@pytest.mark.parametrize(
    ("name", "value", "let_in"),
    [
        (b"origin", b"http://localhost:7480", True),
        (b"origin", b"http://localhost:8000", False),
        (b"origin", b"null", False),
        (b"origin", b"https://evil.example", False),
        (b"sec-fetch-site", b"same-origin", True),
        (b"sec-fetch-site", b"none", True),
        (b"sec-fetch-site", b"cross-site", False),
        (b"sec-fetch-site", b"same-site", False),
    ],
)
def test_pages_of_other_sites(name, value, let_in):
    headers = [(b"host", b"localhost:7480"), (name, value)]
    if let_in:
        Gate().check(headers)
        return
    with pytest.raises(Refusal) as refused:
        Gate().check(headers)
    assert refused.value.code == "cross_origin"


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


DOCUMENT = document()
KINDS = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def problems(value, schema, where=""):
    """Yield where a value departs from a schema, as far as the document uses schemas."""
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema:
        if all(list(problems(value, one)) for one in schema["oneOf"]):
            yield f"{where}: none of the alternatives"
        return
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, KINDS[kind]) for kind in kinds):
        yield f"{where}: {value!r} is no {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        known = schema["properties"]
        yield from (
            f"{where}.{name} is missing" for name in schema["required"] if name not in value
        )
        yield from (f"{where}.{name} is not described" for name in value if name not in known)
        for name in value.keys() & known.keys():
            yield from problems(value[name], known[name], f"{where}.{name}")
    if isinstance(value, list):
        for entry in value:
            yield from problems(entry, schema["items"], f"{where}[]")


@pytest.mark.parametrize(
    "request_",
    [
        {"path": "/v1/recommend", "query": {"user": "USER"}},
        {
            "path": "/v1/recommend",
            "body": {"user": "USER", "recent": ["?"], "ignore_unknown": True},
        },
        {"path": "/v1/recommend", "body": {"user": "nobody"}},
        {"path": "/v1/recommend", "query": {"user": ""}},
        {"path": "/v1/recommend", "query": {"user": "USER"}, "headers": ((b"host", b"x.y"),)},
        {"path": "/v1/recommend", "body": b"", "headers": OWN},
        {"path": "/v1/similar", "query": {"item": "?"}},
        {"path": "/v1/similar", "body": {"item": "i01", "n": 2}},
        {"path": "/health"},
    ],
)
def test_answers_are_what_it_describes(application, published, request_):
    words = {key: _with_user(value, published.user) for key, value in request_.items()}
    answer = ask(application, **words)
    method = "post" if "body" in request_ else "get"
    described = DOCUMENT["paths"][request_["path"]][method]["responses"][str(answer.status)]
    schema = described["content"]["application/json"]["schema"]
    assert list(problems(answer.json, schema)) == []
    if answer.status != 200:
        assert f"`{answer.code}`" in described["description"]


def _with_user(value, user):
    if isinstance(value, dict):
        return {key: user if entry == "USER" else entry for key, entry in value.items()}
    return value


def test_fields_are_those_that_are_read():
    for path, fields in (("/v1/recommend", RECOMMEND_FIELDS), ("/v1/similar", SIMILAR_FIELDS)):
        operations = DOCUMENT["paths"][path]
        assert [field["name"] for field in operations["get"]["parameters"]] == list(fields)
        body = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert list(body["properties"]) == list(fields)


def test_what_can_be_sent_is_what_it_describes():
    for path in ("/v1/recommend", "/v1/similar"):
        content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = content["schema"] | {"required": content["schema"].get("required", [])}
        assert list(problems(content["example"], schema)) == []


def test_every_code_is_described_and_documented():
    named = set(re.findall(r"`(\w+)`", str(DOCUMENT["paths"])))
    # What can happen at any path, or at none of those described.
    assert set(REFUSALS) - named == {"not_found", "wrong_method"}
    root = Path(__file__).parents[3]
    page = (root / "docs/how-to/hand-out-recommendations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, flags=re.MULTILINE)
    assert dict(rows) == {code: str(kind.status) for code, kind in REFUSALS.items()}


class Page(HTMLParser):
    """What a page loads, and whether its elements are closed."""

    def __init__(self, content):
        super().__init__()
        self.loaded: list[str] = []
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_the_page_works_offline_and_without_a_script():
    page = Page(page_of(DOCUMENT).decode())
    assert page.stack == []
    assert sorted(page.loaded) == ["/docs.css", "/openapi.json"]
    assert not page.tags & {"script", "iframe", "img", "form", "style"}
    assert b"@import" not in STYLE
    assert b"url(" not in STYLE


def test_the_page_shows_every_field_and_code():
    shown = page_of(DOCUMENT).decode()
    for word in (*RECOMMEND_FIELDS, *SIMILAR_FIELDS, "/health", "unknown_user", "421"):
        assert word in shown


def test_the_page_escapes_what_it_shows():
    hostile = DOCUMENT | {"info": DOCUMENT["info"] | {"title": "<script>alert(1)</script>"}}
    assert "script" not in Page(page_of(hostile).decode()).tags
