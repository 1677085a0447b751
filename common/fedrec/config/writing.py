"""Settings as TOML text, so that a run can be repeated from its own folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

__all__ = ["settings_to_toml"]


def settings_to_toml(
    settings: BaseModel | Mapping[str, Mapping[str, object]], *, heading: str = ""
) -> str:
    """Return every section and value, defaults written out; what is None is left out.

    Args:
        settings: sections of plain values or tables of them, e.g. `Settings`, or a part of them.
        heading: a comment for the first line.
    """
    lines = [f"# {line}" for line in heading.splitlines()]
    sections = settings.model_dump() if isinstance(settings, BaseModel) else settings
    for name, section in sections.items():
        lines += _table(name, section)
    return "\n".join(lines).strip() + "\n"


def _table(name: str, values: Mapping[str, object]) -> Iterator[str]:
    yield from ("", f"[{name}]")
    inside = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if value is not None and key not in inside:
            yield f"{key} = {_value(value)}"
    for key, value in inside.items():
        yield from _table(f"{name}.{key}", value)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
