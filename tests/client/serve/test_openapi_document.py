"""The document describes what is answered, and the page shows the document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from client.serve.asking import OWN, ask

from fedrec_client.serve.openapi import STYLE, document, page_of
from fedrec_client.serve.request_reading import RECOMMEND_FIELDS, REFUSALS, SIMILAR_FIELDS

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


def problems(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
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


def _with_user(value: Any, user: str) -> Any:
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

    def __init__(self, content: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.stack: list[str] = []
        self.tags: set[str] = set()
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
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
