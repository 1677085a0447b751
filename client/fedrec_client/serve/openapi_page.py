"""The OpenAPI document as a page for people, without a script and without the network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["STYLE", "page_of"]

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
    """Return the page."""
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
