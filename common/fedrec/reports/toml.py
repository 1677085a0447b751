"""Settings as TOML text, so that a run can be repeated from its own folder."""

from __future__ import annotations

import json

from pydantic import BaseModel

__all__ = ["settings_to_toml"]


def settings_to_toml(settings: BaseModel, *, heading: str = "") -> str:
    """Return every section and value, defaults written out; what is None is left out.

    Args:
        settings: sections of plain values, e.g. `Settings`.
        heading: a comment for the first line.
    """
    lines = [f"# {line}" for line in heading.splitlines()]
    for name, section in settings.model_dump().items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in section.items() if value is not None]
    return "\n".join(lines).strip() + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
