"""Read settings from flags, environment, file and defaults, and report every error at once.

- A flag is a dotted key in `overrides`, an environment variable is ``FEDREC_SECTION__FIELD``.
- If none of these sets an option for reading the data, the data file's description may
  (`description_of`).
- Relative paths of the local sections (`PATHS`) start at the settings file's folder. If a flag or
  the environment sets them, they start at the working folder. The plan has no paths.
- `data.path` may be the name of a public data set, which means its place in the cache, unless there
  is a file or folder of that name.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fedrec.algorithms import ALGORITHMS, STARTING_ALGORITHM
from fedrec.data.public import PUBLIC, cached_path
from fedrec.data.reading import DataSettings
from fedrec.errors import SettingsError
from fedrec.plan.combinations import find_conflicts
from fedrec.plan.schema import NAMED, section_type
from fedrec.section import Section
from fedrec.settings.explain import all_settings, unknown_sentence, wrong_sentence
from fedrec.settings.schema import Settings

PATHS = frozenset(
    {
        "data.path",
        "data.catalogue",
        "coordinator.state",
        "coordinator.epoch",
        "coordinator.certificate",
        "coordinator.operators",
        "coordinator.metrics_token",
        "coordinator.metrics_certificate",
        "coordinator.page_certificate",
        "client.state",
        "client.authority_key",
        "client.certificate",
        "client.invitation",
        "client.metrics_token",
        "client.metrics_certificate",
        "output.runs",
    }
)
LARGEST_FILE_BYTES = 1 << 20
DESCRIBED = tuple(name for name in DataSettings.model_fields if name not in ("path", "catalogue"))
"""The settings of `data` that say how a file is read, which its description may hold."""
_SHOWN_CHARS = 60
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[^=\s]+)*)\s*=")
_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class _Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""A value that makes a setting look unset in the file and the environment."""


def description_of(path: str | Path) -> Path:
    """Return the path of a data file's description: TOML next to it, with settings of `data`."""
    return Path(f"{path}.data.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a value.

    Attributes:
        where: file and line, the variable, or ``flag``. Empty for a default.
        line: the line in the file, or 0.
    """

    kind: Literal["flag", "environment", "file", "default"]
    where: str = ""
    line: int = 0

    def __str__(self) -> str:
        return self.where or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings with the origin of the value of every dotted key.

    Attributes:
        path: the file, or None if there is none.
    """

    path: Path | None
    settings: Settings
    origins: Mapping[str, Origin]


def load_settings(
    path: str | Path | None = None,
    values: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    algorithm: str | None = None,
) -> Settings:
    """Return the settings of a file, or those of an algorithm, with overriding values.

    ``load_settings(algorithm="fedals")`` has the values that ``fedrec init --algorithm fedals``
    writes, and ``load_settings(algorithm="fedals", values={"rounds.total": 5})`` changes one.

    Args:
        path: the TOML file. Without one, the settings begin with the algorithm's tuned values.
        values: overriding values by dotted key.
        environ: the environment. `os.environ` by default.
        algorithm: a name in `fedrec.algorithms.ALGORITHMS`. It is not for a file, which has its own
            in ``algorithm.name``. By default the one of `values` or, without one, fedals.

    Raises:
        SettingsError: see `load_with_sources`.
    """
    if not isinstance(values, Mapping | None):
        raise SettingsError(
            f"values is of type {type(values).__name__}, expected a dictionary.",
            remedy="Pass dotted keys, as in values={'rounds.total': 5}.",
        )
    if algorithm not in (None, *ALGORITHMS):
        raise SettingsError(
            f"algorithm is {algorithm!r}.", remedy=f"Choose among {', '.join(ALGORITHMS)}."
        )
    environ, values = os.environ if environ is None else environ, dict(values or {})
    if path is None:
        named = values.get("algorithm.name")
        if algorithm is not None and named not in (None, algorithm):
            raise SettingsError(
                f"algorithm is {algorithm!r}, but values has {named!r} as algorithm.name.",
                remedy="Omit one of them.",
            )
        named = named or environ.get("FEDREC_ALGORITHM__NAME")
        values["algorithm.name"] = algorithm or named or STARTING_ALGORITHM.name
    elif str(path) in ALGORITHMS and not Path(path).exists():
        raise SettingsError(
            f"There is no settings file {path}.",
            remedy=f"For the algorithm's own settings, pass algorithm={str(path)!r}.",
        )
    elif algorithm is not None:
        raise SettingsError(
            f"algorithm is {algorithm!r}, but the settings file {path} names its own.",
            remedy="Omit algorithm or path, or pass values={'algorithm.name': ...}.",
        )
    return load_with_sources(path, values, environ).settings


def load_with_sources(
    path: str | Path | None,
    values: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read a settings file and record the origin of every value.

    Args:
        path: the TOML file, or None for values and the environment alone.
        values: overriding values by dotted key, also as text. None is a flag that was not given.
            `UNSET` removes the value of the file and the environment.
        environ: the environment. `os.environ` by default.

    Raises:
        SettingsError: settings are invalid. The message has every problem with its place, the
            value, the allowed values and a remedy.
    """
    path = None if path is None else Path(path)
    given = _Given()
    if path is not None:
        given.take_file(path, _read(path))
    else:
        given.take_start((values or {}).get("algorithm.name"))
    given.take_environment(os.environ if environ is None else environ)
    given.take_flags(values or {}, where="flag" if path is not None else "values")
    folder = Path() if path is None else path.parent
    given.take_description(folder)
    settings = _validated(given)
    if settings is not None:
        for conflict in find_conflicts(settings.plan):
            given.refuse(given.origin_of(conflict.keys), conflict.sentence)
    if given.problems or settings is None:
        raise _refusal(path, given.ordered_problems())
    return LoadedSettings(
        path=path,
        settings=_with_paths(settings, given.origins, folder),
        origins={
            key: given.origins.get(key, Origin(kind="default"))
            for key in all_settings(settings.algorithm.name, settings.protection.name)
        },
    )


class _Given:
    """The values for known keys, with the last source winning, and their problems."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.origins: dict[str, Origin] = {}
        self._unset: set[str] = set()
        self.problems: list[tuple[Origin, str]] = []

    def refuse(self, origin: Origin, sentence: str) -> None:
        """Add a problem, once."""
        if (origin, sentence) not in self.problems:
            self.problems.append((origin, sentence))

    def origin_of(self, keys: Iterable[str]) -> Origin:
        """Return the origin of the first given one of these keys, or of its table."""
        for key in keys:
            for name in (key, key.rpartition(".")[0]):
                if name in self.origins:
                    return self.origins[name]
        return Origin(kind="default")

    def ordered_problems(self) -> list[str]:
        """Return the problems in the order of the file, followed by those from elsewhere."""
        ordered = sorted(self.problems, key=lambda found: found[0].line or LARGEST_FILE_BYTES)
        return [f"{origin}: {sentence}" for origin, sentence in ordered]

    def take_file(self, path: Path, text: str) -> None:
        for key, value, origin in _content(path, text):
            self._take(key, value, origin, _RENAME)

    def take_start(self, algorithm: object) -> None:
        """Take the tuned values of an algorithm, which are the defaults if there is no file."""
        kind = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
        for key, value in ((kind and kind.about.advice.starter) or {}).items():
            self._take(key, value, Origin(kind="default", where=f"start of {algorithm}"), "")

    def take_description(self, folder: Path) -> None:
        """Take the options that only the data's description sets.

        Args:
            folder: the settings file's folder.
        """
        data = self.values.get("data.path")
        if not isinstance(data, str):
            return
        place = description_of(_place("data.path", data, self.origins.get("data.path"), folder))
        if not place.is_file():
            return
        for name, value, origin in _content(place, _read(place)):
            key = f"data.{name}"
            if name not in DESCRIBED:
                known = f"{name} is none of {', '.join(DESCRIBED)}."
                self.refuse(origin, f"{known} {_RENAME}")
            elif key not in self.values and key not in self._unset:
                self._take(key, value, origin, _RENAME)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        for name in sorted(environ):
            if not name.startswith("FEDREC_") or "__" not in name:
                continue
            key = name.removeprefix("FEDREC_").lower().replace("__", ".")
            value = _from_text(key, environ[name])
            origin = Origin(kind="environment", where=f"environment {name}")
            self._take(key, value, origin, "Rename or unset the variable.")

    def take_flags(self, values: Mapping[str, object], *, where: str) -> None:
        for key, value in values.items():
            if value is not None:
                origin = Origin(kind="flag", where=where)
                value = _from_text(key, value) if isinstance(value, str) else value
                value = value.item() if isinstance(value, np.generic) else value
                self._take(key, value, origin, "Name a setting that exists.")

    def _take(self, key: str, value: object, origin: Origin, remedy: str) -> None:
        known, (table, _, name) = all_settings(), key.rpartition(".")
        if key in known and value is UNSET:
            self._unset.add(key)
            self.values.pop(key, None)
            self.origins.pop(key, None)
        elif key in known and isinstance(value, str) and "\0" in value:
            self.refuse(origin, f"{key} has a zero character. Remove it.")
        elif key in known:
            self.values[key], self.origins[key] = value, origin
        elif table in known and isinstance(known[table].default, Section):
            # A setting inside a table belongs to the given owner, or else to the default one.
            whole = self.values.get(table, {"name": known[table].default.name})
            if isinstance(whole, Mapping):
                kept = {each: found for each, found in whole.items() if each != name}
                kept |= {} if value is UNSET else {name: value}
                self.values[table], self.origins[table] = kept, origin
        else:
            self.refuse(origin, f"{unknown_sentence(key, value)} {remedy}")


_RENAME = "Rename it, or remove the line."


def _content(path: Path, text: str) -> Iterator[tuple[str, object, Origin]]:
    """Yield a file's keys and values, and where each stands."""
    lines = _lines_of_keys(text)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, [_syntax_problem(path, text, error)]) from None
    for key, value in _flattened(document):
        line = lines.get(key) or lines.get(key.rpartition(".")[0], 0)
        where = f"{path}:{line}" if line else str(path)
        yield key, value, Origin(kind="file", where=where, line=line)


def _read(path: Path) -> str:
    remedy = "Check the path, or make a settings file with `fedrec init`."
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
        if len(raw) > LARGEST_FILE_BYTES:
            raise SettingsError(f"{path} is too long for a settings file.", remedy=remedy)
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line} is not UTF-8 text.", remedy=remedy) from None


def _flattened(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield dotted keys. A section that is not a table is yielded as its own key."""
    for section, content in document.items():
        if isinstance(content, dict) and section in Settings.model_fields:
            yield from ((f"{section}.{name}", value) for name, value in content.items())
        elif isinstance(content, dict) and content:
            # In an unknown section, every key may belong to a different section.
            yield from ((f"{section}.{name}", value) for name, value in content.items())
        else:
            yield section, content


def _validated(given: _Given) -> Settings | None:
    nested: dict[str, dict[str, object]] = {}
    for key, value in given.values.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
        if isinstance(value, float) and not math.isfinite(value):
            given.refuse(given.origins[key], wrong_sentence(key, value))
    sections: dict[str, Section] = {}
    owner = ""
    for section, values in nested.items():
        try:
            kind = section_type(section, values, Settings)
            owner = str(values.get("name", NAMED[section][0])) if section in NAMED else ""
            sections[section] = kind.model_validate(values, strict=True)
        except ValidationError as error:
            for found in error.errors(include_url=False):
                message = found["msg"].removeprefix("Value error, ")
                if not found["loc"]:
                    # Settings of a section that depend on each other, beginning with the one to
                    # change.
                    key = f"{section}.{message.partition(':')[0]}"
                    given.refuse(given.origins[key], f"{section}.{message}")
                    continue
                key = f"{section}.{found['loc'][0]}"
                sentence = wrong_sentence(key, given.values[key], owner)
                if isinstance(given.values[key], Mapping) or found["type"] == "value_error":
                    sentence = f"{key}: {message}"
                given.refuse(given.origins[key], sentence)
        except ValueError:
            key = f"{section}.name"
            given.refuse(given.origins[key], wrong_sentence(key, given.values[key]))
    return Settings(**sections) if len(sections) == len(nested) else None  # type: ignore[arg-type]


def _from_text(key: str, text: str) -> object:
    """Convert the text of a variable or flag to the type of its setting, if possible."""
    setting = all_settings().get(key)
    if setting is None:
        return text
    try:
        return TypeAdapter(setting.annotation).validate_strings(text)
    except ValidationError:
        return text


def _syntax_problem(path: Path, text: str, error: ValueError | RecursionError) -> str:
    message = str(error)
    place = _SYNTAX_LINE.search(message)
    lines = text.splitlines()
    number = int(place[1]) if place else len(lines)
    reason = message[: place.start()].strip() if place else message.partition(" (")[0]
    shown = lines[number - 1].strip()[:_SHOWN_CHARS] if 0 < number <= len(lines) else ""
    return f"{path}:{number}: invalid TOML: {reason}. Found {shown!r}, expected key = value."


def _lines_of_keys(text: str) -> dict[str, int]:
    """Return the first line of every dotted key and section header."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = _plain(header[1])
            found.setdefault(section, number)
        elif key := _KEY.match(line):
            name = _plain(key[1])
            found.setdefault(f"{section}.{name}" if section else name, number)
    return found


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _with_paths(settings: Settings, origins: Mapping[str, Origin], folder: Path) -> Settings:
    changed: dict[str, dict[str, str]] = {}
    for key in PATHS:
        section, _, name = key.partition(".")
        value = getattr(getattr(settings, section), name)
        if value is None:
            continue
        resolved = _place(key, value, origins.get(key), folder)
        if str(resolved) != value:
            changed.setdefault(section, {})[name] = str(resolved)
    return settings.model_copy(
        update={
            section: getattr(settings, section).model_copy(update=values)
            for section, values in changed.items()
        }
    )


def _place(key: str, value: str, origin: Origin | None, folder: Path) -> Path:
    """Return where a path of the settings leads.

    Args:
        folder: the settings file's folder.

    Raises:
        SettingsError: it begins with `~`, and that user or its home is unknown.
    """
    resolved = Path("/dev/stdin" if key == "data.path" and value == "-" else value)
    if origin is None or origin.kind == "file":
        try:
            resolved = _shortened(folder / resolved.expanduser())
        except RuntimeError:
            raise SettingsError(
                f"{key} is {value!r}, but that home directory is unknown.",
                remedy="Write the path in full.",
            ) from None
    if key == "data.path" and value in PUBLIC and not resolved.exists():
        resolved = cached_path(value)
    return resolved


def _shortened(path: Path) -> Path:
    """Return a path without `..` if that names the same file, despite links."""
    shorter = Path(os.path.normpath(path))
    return shorter if shorter.resolve() == path.resolve() else path


def _refusal(path: Path | None, problems: Iterable[str]) -> SettingsError:
    found = tuple(problems)
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    return SettingsError(
        f"{path or 'settings'}: {count}, nothing was started.",
        remedy="`fedrec check --explain KEY` shows the values that a setting accepts."
        if path is not None
        else "Each problem has the values that the setting accepts.",
        problems=found,
    )
