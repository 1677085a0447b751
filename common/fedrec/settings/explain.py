"""Settings as text: their descriptions, allowed values, and files."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedrec.algorithms import AlgorithmSettings
from fedrec.errors import SettingsError
from fedrec.plan.protections import about_protection
from fedrec.plan.schema import NAMED, Plan, section_types
from fedrec.protection import PROTECTIONS, ProtectionSettings
from fedrec.section import InWords, Section, as_toml, where_used
from fedrec.settings.schema import Settings

_SHOWN_CHARS = 60

_KINDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    list[str]: "a list of names",
    AlgorithmSettings: "a table of settings with a name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting, with its type, default and description.

    Attributes:
        key: dotted, as in ``rounds.total``.
        annotation: the type of its field.
        default: its value if it is not set.
        allowed: the values that it accepts, as text.
        sentence: its description.
        in_plan: whether coordinator and clients must agree on it.
        owner: the algorithm or protection that the setting belongs to, or empty if it is general.
        default_in_words: the default, if it depends on other settings.
    """

    key: str
    annotation: Any
    default: Any
    allowed: str
    sentence: str
    in_plan: bool
    owner: str = ""
    default_in_words: str = ""

    @property
    def shown_default(self) -> str:
        """The default in TOML or, if it depends on other settings, in words."""
        return self.default_in_words or as_toml(self.default)

    @property
    def section(self) -> str:
        """The section of the settings file that contains it."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key.partition(".")[2]

    @property
    def environment(self) -> str:
        """The environment variable that sets it or, for a table, its name."""
        inside = "__name" if isinstance(self.default, Section) else ""
        return f"FEDREC_{self.section}__{self.name}{inside}".upper()


@cache
def all_settings(*owners: str) -> dict[str, SettingInfo]:
    """Return every setting by its dotted key, in the order of the schema.

    Args:
        owners: omit the settings of other algorithms and protections. Without owners, a key that
            several share is listed for the first one.
    """
    found: dict[str, SettingInfo] = {}
    for setting in _every_setting():
        if not owners or setting.owner in ("", *owners):
            found.setdefault(setting.key, setting)
    return found


@cache
def _every_setting() -> tuple[SettingInfo, ...]:
    return tuple(
        SettingInfo(
            key=f"{section}.{name}",
            annotation=_annotation(section, name, field),
            default=field.default,
            allowed=_allowed(_annotation(section, name, field), field.metadata),
            sentence=_sentence_of(section, name, field),
            in_plan=section in Plan.model_fields,
            owner=owner,
            default_in_words=next(
                (one.default for one in field.metadata if isinstance(one, InWords)), ""
            ),
        )
        for section, owner, model in section_types(Settings)
        for name, field in model.model_fields.items()
        if not _is_common(section, owner, name)
    )


def _is_common(section: str, owner: str, name: str) -> bool:
    """Return whether a setting is shared by all protections, so that it is listed once."""
    return section == "protection" and owner != "" and name in ProtectionSettings.model_fields


def _annotation(section: str, name: str, field: FieldInfo) -> Any:
    if name == "name" and section in NAMED:
        # The settings of an algorithm accept only its own name.
        return Literal[tuple(NAMED[section][1])]
    return field.annotation


def _sentence_of(section: str, name: str, field: FieldInfo) -> str:
    if (section, name) == ("protection", "name"):
        return " ".join(f"{name}: {about_protection(name).summary}." for name in PROTECTIONS)
    condition = where_used(field.metadata)
    text = field.description or ""
    return f"{text} {condition[0].upper()}{condition[1:]}." if condition else text


def section_sentences() -> dict[str, str]:
    """Return a description of every section."""
    found = {"algorithm": _sentence(AlgorithmSettings)}
    for section, _, model in section_types(Settings):
        found.setdefault(section, _sentence(model))
    return {section: found[section] for section in Settings.model_fields}


def _sentence(model: type[Section]) -> str:
    return (model.__doc__ or "").strip().partition("\n\n")[0]


def explain(key: str = "") -> tuple[SettingInfo, ...]:
    """Return one setting, those of a section, or all of them, with descriptions.

    Args:
        key: a dotted key, the name of a section, or nothing.

    Raises:
        SettingsError: the key is unknown. The message has the nearest one.
    """
    found = tuple(
        setting for setting in _every_setting() if not key or key in (setting.key, setting.section)
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
    """Return the known key that was probably meant, or an empty string.

    A name that exists in another section comes first, then a similar name in the same section, then
    a similar name anywhere.
    """
    section, _, name = key.rpartition(".")
    known = all_settings()
    of_name = [setting.key for setting in known.values() if setting.name == (name or key)]
    similar_section = _closest(section, Settings.model_fields) or section
    within = [setting.name for setting in known.values() if setting.section == similar_section]
    if of_name:
        return _closest(key, of_name) or of_name[0]
    begun = [known for known in within if name and known.startswith(name)]
    if similar_name := _closest(name, within) or next(iter(begun), ""):
        return f"{similar_section}.{similar_name}"
    anywhere = _closest(name or key, {setting.name for setting in known.values()})
    return next((setting.key for setting in known.values() if setting.name == anywhere), "")


def unknown_sentence(key: str, value: object) -> str:
    """Return the error for an unknown key, with the nearest known one."""
    if key in Settings.model_fields:
        first = next(setting for setting in all_settings() if setting.startswith(f"{key}."))
        return (
            f"{key} is a section. Expected [{key}] and its settings in the lines below it, or "
            f"dotted keys such as {first}."
        )
    shown = f"{key} = {_shortened(value)}" if "." in key else key
    if nearest := nearest_key(key):
        return (
            f"{shown}: there is no such setting. The nearest is {nearest} "
            f"({all_settings()[nearest].allowed})."
        )
    section = key.partition(".")[0]
    known = [s.name for s in all_settings().values() if s.section == section]
    if known:
        return f"{shown}: there is no such setting. [{section}] has {', '.join(known)}."
    sections = ", ".join(Settings.model_fields)
    return f"{shown}: there is no such setting. Sections are {sections}."


def wrong_sentence(key: str, value: object, owner: str = "") -> str:
    """Return the error for an invalid value of a known key, with the allowed values.

    Args:
        owner: the algorithm or protection that was chosen.
    """
    setting = all_settings(*filter(None, [owner])).get(key)
    if setting is None:
        having = [info.owner for info in _every_setting() if info.key == key]
        section, _, name = key.partition(".")
        alike = [other.key for other in all_settings(owner).values() if other.name == name]
        instead = f", use {' or '.join(alike)}" if alike else ""
        return (
            f"{key} = {_shortened(value)}: {owner} has no such setting, only "
            f"{', '.join(having)}. Omit it{instead}, or change {section}.name."
        )
    choices = get_args(setting.annotation) if get_origin(setting.annotation) is Literal else ()
    nearest = _closest(value, choices) if isinstance(value, str) else ""
    hint = f" The nearest is {json.dumps(nearest)}." if nearest else ""
    return (
        f"{key} = {_shortened(value)}: expected {setting.allowed}.{hint} Correct it, or omit it "
        f"for {setting.shown_default}."
    )


def _shortened(value: object) -> str:
    shown = as_toml(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 3]}..."


def _allowed(annotation: Any, metadata: Iterable[object]) -> str:
    optional = False
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType]
        optional = len(kinds) < len(get_args(annotation))
        if len(kinds) > 1:
            return " or ".join(_allowed(kind, ()) for kind in kinds)
        annotation = kinds[0]
    if get_origin(annotation) is Annotated:
        annotation, *within = get_args(annotation)
        metadata = [limit for info in within for limit in getattr(info, "metadata", ())]
    if get_origin(annotation) is Literal:
        choices = [json.dumps(choice) for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    own_words = next((item.words for item in metadata if isinstance(item, InWords)), "")
    words = own_words or _KINDS.get(annotation, str(annotation)) + _limits(metadata)
    return f"{words}, or left out" if optional else words


def _limits(metadata: Iterable[object]) -> str:
    names = ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of")
    bounds = {
        name: _short(bound)
        for item in metadata
        for name in names
        if (bound := getattr(item, name, None)) is not None
    }
    parts = [_range(bounds.get("ge"), bounds.get("gt"), bounds.get("le"), bounds.get("lt"))]
    parts.append(_range(bounds.get("min_length"), None, bounds.get("max_length"), None))
    parts[1] += " characters" if parts[1] else ""
    parts.append(f" in steps of {bounds['multiple_of']}" if "multiple_of" in bounds else "")
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


def settings_to_toml(
    settings: BaseModel | Mapping[str, Mapping[str, object]], *, heading: str = ""
) -> str:
    """Return every section and value as TOML, with defaults. A value of None is omitted.

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
    # A JSON string is a TOML basic string, except for DEL, which TOML requires to be escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
