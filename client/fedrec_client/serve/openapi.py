"""The OpenAPI document of the served API, as JSON and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fedrec import __version__
from fedrec_client.serve.request_reading import (
    BATCH_FIELDS,
    DEFAULT_N,
    MOST_BODY_BYTES,
    MOST_IDS,
    MOST_N,
    MOST_OF_BATCH,
    RECOMMEND_FIELDS,
    REFUSALS,
    SIMILAR_FIELDS,
)

_SENTENCES = {
    "user": "A user of this client, as in the data file. Pass either this or history.",
    "users": "Users of this client, as in the data file. Their number times n is at most "
    f"{MOST_OF_BATCH}.",
    "history": "Items of a new user. The vector computed from them is discarded afterwards.",
    "recent": "Items that a known user has had since the data file was written. They are folded "
    "in with the user's whole history, without a round. The answer then comes from the "
    "history, not from the trained vector.",
    "n": "Largest number of items.",
    "exclude_seen": "Leave out items of the user's history.",
    "exclude": "Items that are never returned, even if they are candidates.",
    "candidates": "Items to choose from. If omitted, chooses from all items.",
    "ignore_unknown": "Skip items that are not in the catalogue and list them in the answer, "
    "instead of refusing the request.",
    "item": "The item, as in the catalogue.",
}
_KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "minLength": 1},
    "ids": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MOST_IDS},
    "count": {"type": "integer", "minimum": 1, "maximum": MOST_N, "default": DEFAULT_N},
    "flag": {"type": "boolean"},
}
_DEFAULTS = {"exclude_seen": True, "ignore_unknown": False}
_OF_QUESTIONS = (
    "malformed",
    "unauthorised",
    "cross_origin",
    "unknown_item",
    "too_slow",
    "too_large",
    "not_json",
    "foreign_host",
    "never_learned",
    "head_too_large",
    "internal",
    "not_ready",
    "too_busy",
)
_EXAMPLES = {
    "/v1/recommend": {"user": "196", "n": 5, "exclude": ["50"]},
    "/v1/batch": {"users": ["196", "3"], "n": 5},
    "/v1/similar": {"item": "50", "n": 5},
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document, version 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Recommendations of one fedrec client",
            "version": __version__,
            "description": "Answers are computed on this machine, from the model that the "
            "federation published and this client's own users. Nothing is sent "
            "anywhere. Every answer comes from a single version and names it. A "
            "GET has its fields in the address, with lists as repeated parameters. "
            f"A POST has them in one JSON object of at most {MOST_BODY_BYTES} "
            "bytes, so that no user appears in an address.",
        },
        "paths": _answers(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _answers() -> dict[str, Any]:
    """Return what each path answers."""
    return {
        "/v1/recommend": _questions(
            "/v1/recommend",
            "The best items for a user of this client, or for a new user.",
            RECOMMEND_FIELDS,
            (*_OF_QUESTIONS, "unknown_user", "no_fold_in"),
            required=[],
        ),
        "/v1/batch": _questions(
            "/v1/batch",
            "The best items for each of several users of this client, from one version.",
            BATCH_FIELDS,
            (*_OF_QUESTIONS, "unknown_user"),
            required=["users"],
            answer="Batch",
        ),
        "/v1/similar": _questions(
            "/v1/similar",
            "The items whose rows have the largest cosine with the row of an item.",
            SIMILAR_FIELDS,
            _OF_QUESTIONS,
            required=["item"],
        ),
        "/health": {
            "get": {
                "operationId": "health",
                "summary": "Whether there is a model, and its version.",
                "responses": {
                    "200": _response("There is a model.", "Health"),
                    "503": _response("There is no model yet.", "Health"),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Metrics for Prometheus, none of which is about a user or an item.",
                "responses": {
                    "200": {
                        "description": "The numbers.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    },
                    **_responses(("unauthorised",)),
                },
                "security": [{}, {"token": []}],
            }
        },
    }


def _questions(
    path: str,
    summary: str,
    fields: dict[str, str],
    codes: Sequence[str],
    *,
    required: list[str],
    answer: str = "Answer",
) -> dict[str, Any]:
    schemas = {name: _schema_of(name, kind) for name, kind in fields.items()}
    responses = _responses(codes, answer)
    about = {"summary": summary, "responses": responses, "security": [{}, {"token": []}]}
    name = path.rpartition("/")[2]
    body: dict[str, Any] = {"type": "object", "properties": schemas, "additionalProperties": False}
    if required:
        body["required"] = required
    return {
        "get": {
            "operationId": f"{name}_get",
            **about,
            "parameters": [
                {
                    "name": field,
                    "in": "query",
                    "required": field in required,
                    "description": _SENTENCES[field],
                    "schema": schemas[field],
                }
                for field in fields
            ],
        },
        "post": {
            "operationId": f"{name}_post",
            **about,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": body, "example": _EXAMPLES[path]}},
            },
        },
    }


def _schema_of(name: str, kind: str) -> dict[str, Any]:
    found = {**_KINDS[kind], "description": _SENTENCES[name]}
    return found | ({"default": _DEFAULTS[name]} if name in _DEFAULTS else {})


def _responses(codes: Sequence[str], answer: str = "") -> dict[str, Any]:
    found = {"200": _response("The items, best first.", answer)} if answer else {}
    for status in sorted({REFUSALS[code].status for code in codes}):
        sentences = [
            f"`{code}`: {kind.meaning}"
            for code, kind in REFUSALS.items()
            if code in codes and kind.status == status
        ]
        found[str(status)] = _response(" ".join(sentences), "Refused")
    return found


def _response(description: str, schema: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _schemas() -> dict[str, Any]:
    text, whole = {"type": "string"}, {"type": "integer"}
    item = {"rank": whole, "item_id": text, "title": text, "score": {"type": "number"}}
    version = {"type": ["integer", "null"], "description": "The round that produced the model."}
    error = {"code": {"type": "string", "enum": list(REFUSALS)}, "message": text, "remedy": text}
    problem = {"code": text, "message": text, "remedy": text}
    head = {
        "version": version | {"type": "integer"},
        "run": text | {"description": "The run that the version belongs to."},
        "ignored": {"type": "array", "items": text},
    }
    items = {"type": "array", "items": _object(item)}
    return {
        "Answer": _object(
            head
            | {
                "basis": {
                    "type": "string",
                    "enum": ["user", "history", "item"],
                    "description": "The vector that was compared: the user's own parameters, the "
                    "vector of a history, or the item's row.",
                },
                "items": items,
            },
            optional=("ignored",),
        ),
        "Batch": _object(
            head | {"users": {"type": "array", "items": _object({"user": text, "items": items})}},
            optional=("ignored",),
        ),
        "Refused": _object({"error": _object(error), "version": version}),
        "Health": _object(
            {
                "status": {"type": "string", "enum": ["ready", "not_ready"]},
                "version": version,
                "run": {"type": ["string", "null"]},
                "n_items": {"type": ["integer", "null"]},
                "n_users": {"type": ["integer", "null"]},
                "problem": {"oneOf": [_object(problem), {"type": "null"}]},
            },
            optional=("run", "n_items", "n_users", "problem"),
        ),
    }


def _object(properties: dict[str, Any], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


STYLE = b"""\
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid color-mix(in srgb, currentcolor 25%, transparent); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; }
td:first-child { white-space: nowrap; }
code, pre { font-family: ui-monospace, monospace; font-size: .95em; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid; border-radius: .3rem; }
.method { text-transform: uppercase; font-weight: bold; }
"""


def page_of(document: Mapping[str, Any]) -> bytes:
    """Return the document as an HTML page."""
    info = document["info"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(info['title'])}</title>",
        '<link rel="stylesheet" href="/docs.css"></head><body>',
        f"<h1>{escape(info['title'])}</h1>",
        f"<p>{escape(info['description'])}</p>",
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>',
        *_paths(document),
        "</body></html>",
    ]
    return "\n".join(parts).encode()


def _paths(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        first = next(iter(operations.values()))
        yield f"<h2><code>{escape(path)}</code></h2><p>{escape(first['summary'])}</p>"
        methods = ", ".join(f'<span class="method">{escape(name)}</span>' for name in operations)
        yield f"<p>Methods: {methods}</p>"
        if first.get("parameters"):
            rows = (
                (field["name"], _kind_of(field["schema"]), field["description"])
                for field in first["parameters"]
            )
            yield _table(("field", "kind", "meaning"), rows)
        body = operations.get("post", {}).get("requestBody")
        if body is not None:
            example = json.dumps(body["content"]["application/json"]["example"])
            yield (
                f"<pre>curl -H 'Content-Type: application/json' -d '{escape(example)}' "
                f"ADDRESS{escape(path)}</pre>"
            )
        yield _table(
            ("status", "meaning"),
            (
                (status, found["description"].replace("`", ""))
                for status, found in first["responses"].items()
            ),
        )


def _kind_of(schema: Mapping[str, Any]) -> str:
    kind = str(schema["type"])
    if kind == "array":
        return f"list of up to {schema['maxItems']} ids"
    if "maximum" in schema:
        kind = f"{schema['minimum']} to {schema['maximum']}"
    if "default" in schema:
        kind += f", {json.dumps(schema['default'])} if not given"
    return kind


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = [f'<div class="scroll"><table><tr>{titles}</tr>']
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return "".join([*lines, "</table></div>"])
