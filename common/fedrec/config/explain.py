"""What every setting is for, which values it takes, and which one it has by itself.

Everything here is read from the fields of the schema: the sentence that `fedrec check --explain`
prints, the one in an error and the one in the reference are the same sentence.
"""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedrec.config.schema import Plan, Section, Settings
from fedrec.errors import SettingsError

__all__ = [
    "SettingInfo",
    "all_settings",
    "as_toml",
    "explain",
    "nearest_key",
    "section_sentences",
    "settings_markdown",
    "unknown_sentence",
    "wrong_sentence",
]

_SHOWN_CHARS = 60

_KINDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting.

    Attributes:
        key: dotted, as in ``rounds.total``.
        annotation: the type of its field.
        default: its value where nobody sets it.
        allowed: the values that it takes, in words.
        sentence: what it is for.
        in_plan: whether coordinator and clients must agree on it.
    """

    key: str
    annotation: Any
    default: Any
    allowed: str
    sentence: str
    in_plan: bool

    @property
    def section(self) -> str:
        """The table of the settings file that it belongs to."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Its name within the section."""
        return self.key.partition(".")[2]

    @property
    def environment(self) -> str:
        """The environment variable that sets it."""
        return f"FEDREC_{self.section}__{self.name}".upper()


@cache
def all_settings() -> dict[str, SettingInfo]:
    """Return every setting by its dotted key, in the order of the schema."""
    return {
        f"{section}.{name}": SettingInfo(
            key=f"{section}.{name}",
            annotation=field.annotation,
            default=field.default,
            allowed=_allowed(field),
            sentence=field.description or "",
            in_plan=section in Plan.model_fields,
        )
        for section, model in _sections().items()
        for name, field in model.model_fields.items()
    }


def section_sentences() -> dict[str, str]:
    """Return for every section what it is about."""
    return {name: (model.__doc__ or "").strip() for name, model in _sections().items()}


def explain(key: str = "") -> tuple[SettingInfo, ...]:
    """Return one setting, those of a section, or all of them.

    Args:
        key: a dotted key, the name of a section, or nothing.

    Raises:
        SettingsError: for an unknown key, naming the nearest one.
    """
    found = tuple(
        setting
        for setting in all_settings().values()
        if not key or key in (setting.key, setting.section)
    )
    if found:
        return found
    nearest = nearest_key(key)
    raise SettingsError(
        f"There is no setting and no section {key!r}.",
        remedy=f"The nearest setting is {nearest}."
        if nearest
        else f"Sections are {', '.join(Settings.model_fields)}.",
    )


def nearest_key(key: str) -> str:
    """Return the known key that somebody may have meant, or an empty string.

    A name that exists in another section comes first, then a similar name in the same section,
    then a similar name anywhere.
    """
    section, _, name = key.rpartition(".")
    known = all_settings()
    of_name = [setting.key for setting in known.values() if setting.name == (name or key)]
    similar_section = _closest(section, Settings.model_fields) or section
    within = [setting.name for setting in known.values() if setting.section == similar_section]
    if of_name:
        return _closest(key, of_name) or of_name[0]
    if similar_name := _closest(name, within):
        return f"{similar_section}.{similar_name}"
    anywhere = _closest(name or key, {setting.name for setting in known.values()})
    return next((setting.key for setting in known.values() if setting.name == anywhere), "")


def settings_markdown() -> str:
    """Return the reference of all settings as Markdown, one table for each section."""
    lines = []
    for section, sentence in section_sentences().items():
        shared = "plan: all parties agree on it" if section in Plan.model_fields else "local"
        lines += [f"## `[{section}]`", "", f"{sentence} ({shared})", ""]
        lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        for setting in explain(section):
            cells = (f"`{setting.key}`", f"`{as_toml(setting.default)}`", setting.allowed)
            lines.append(f"| {' | '.join(_cell(text) for text in (*cells, setting.sentence))} |")
        lines.append("")
    return "\n".join(lines)


def as_toml(value: object) -> str:
    """Return a value as a settings file writes it; ``not set`` for None."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def unknown_sentence(key: str, value: object) -> str:
    """Return that a key does not exist, with the nearest that does."""
    if key in Settings.model_fields:
        return f"{key} is a section; expected [{key}] and its settings in the lines below it."
    shown = f"{key} = {_shortened(value)}" if "." in key else key
    if nearest := nearest_key(key):
        return (
            f"{shown}: there is no such setting; the nearest is {nearest} "
            f"({all_settings()[nearest].allowed})."
        )
    section = key.partition(".")[0]
    known = [s.name for s in all_settings().values() if s.section == section]
    if known:
        return f"{shown}: there is no such setting; [{section}] has {', '.join(known)}."
    sections = ", ".join(Settings.model_fields)
    return f"{shown}: there is no such setting; sections are {sections}."


def wrong_sentence(key: str, value: object) -> str:
    """Return what is wrong with the value of a known key, and what would be right."""
    setting = all_settings()[key]
    return (
        f"{key} = {_shortened(value)}: expected {setting.allowed}. "
        f"Correct it, or leave it out for {as_toml(setting.default)}."
    )


def _shortened(value: object) -> str:
    shown = as_toml(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 3]}..."


def _sections() -> dict[str, type[Section]]:
    found: dict[str, type[Section]] = {}
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, Section):
            found[name] = model
    return found


def _allowed(field: FieldInfo) -> str:
    annotation = field.annotation
    optional = get_origin(annotation) in (Union, types.UnionType)
    if optional:
        annotation = next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in get_args(annotation))
    words = _KINDS.get(annotation, str(annotation)) + _limits(field.metadata)
    return f"{words}, or left out" if optional else words


def _limits(metadata: Iterable[object]) -> str:
    names = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
    bounds = {
        name: _short(bound)
        for item in metadata
        for name in names
        if (bound := getattr(item, name, None)) is not None
    }
    parts = [_range(bounds.get("ge"), bounds.get("gt"), bounds.get("le"), bounds.get("lt"))]
    parts.append(_range(bounds.get("min_length"), None, bounds.get("max_length"), None))
    parts[1] += " characters" if parts[1] else ""
    parts.append(f" matching {bounds['pattern']}" if "pattern" in bounds else "")
    return "".join(parts)


def _range(least: str | None, above: str | None, most: str | None, below: str | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    lower = f"of at least {least}" if least is not None else above and f"above {above}"
    upper = f"below {below}" if below is not None else most and f"at most {most}"
    if lower and upper:
        return f" {lower}, {upper}"
    # "above" and "below" follow the noun, "at most" needs an "of" that "at least" has already.
    limit = lower or (f"of {upper}" if most is not None else upper)
    return f" {limit}" if limit else ""


def _short(bound: object) -> str:
    if isinstance(bound, int) and bound >= 2**20 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:.10g}" if isinstance(bound, float) else str(bound)


def _closest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
