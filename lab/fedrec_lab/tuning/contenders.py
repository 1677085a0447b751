"""The algorithms of a study, each with the settings that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import SettingsError
from fedrec.settings.explain import all_settings
from fedrec.settings.schema import Settings
from fedrec.settings.starter import Starter
from fedrec.settings.validation import UNSET, load_settings
from fedrec_lab.tuning.space import Load, Values

Given = Mapping[str, object]
"""Settings by dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An algorithm in a study.

    Attributes:
        load: returns its settings with values that are tried.
    """

    algorithm: str
    load: Load


def settings_of_data(data: Path, algorithm: str) -> dict[str, object]:
    """Return the data, federation and algorithm settings of `fedrec init --data DATA`."""
    beside = data.parent / "catalogue.csv"
    starter = Starter(
        algorithm=algorithm,
        data=str(data.resolve()) if data.exists() else str(data),
        catalogue=str(beside.resolve()) if beside.is_file() else "",
    )
    of_machines = ("coordinator.", "client.", "parties.")
    return {
        key: value
        for key, value in starter.values().items()
        if value is not None and not key.startswith(of_machines)
    }


def contenders_of(
    path: Path | None, base: Given, given: Given, algorithms: Sequence[str]
) -> tuple[Contender, ...]:
    """Return the algorithms, that of the settings first if it is among them.

    Another algorithm takes the other sections of the settings, and its own starting settings in
    place of `[algorithm]`, `[update]` and `rounds.total`.

    Args:
        path: the settings file, or None.
        base: settings that come before given ones, in place of a file.
        given: settings of flags. Those of `[algorithm]` are about the settings' own algorithm.
        algorithms: names, or none for the settings' own.

    Raises:
        SettingsError: an algorithm is not known, or cannot be combined with the settings.
    """
    own = load_settings(path, {**base, **given}).algorithm.name
    names = list(dict.fromkeys(algorithms)) or [own]
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown:
        raise SettingsError(
            f"--algorithms names {unknown[0]!r}, which is not an algorithm.",
            remedy=f"Choose one of: {', '.join(ALGORITHMS)}.",
        )
    # A stable sort: the others stay in their order.
    names.sort(key=lambda name: name != own)
    for_others = {key: value for key, value in given.items() if not key.startswith("algorithm.")}
    found = []
    for name in names:
        values = {**base, **given} if name == own else {**base, **_starting(name), **for_others}
        load: Load = partial(_load, path, values)
        load({})
        found.append(Contender(algorithm=name, load=load))
    return tuple(found)


def _load(path: Path | None, given: Given, values: Values) -> Settings:
    return load_settings(path, {**given, **values})


def _starting(name: str) -> dict[str, object]:
    """Return the starting settings of an algorithm that the settings do not name."""
    kind = ALGORITHMS[name]
    values: dict[str, object] = {
        key: UNSET
        for key in all_settings()
        if key.startswith(("algorithm.", "update.")) or key == "rounds.total"
    }
    values |= {"algorithm.name": name, **(kind.about.starter or {})}
    if kind.about.starter is None:
        space = kind.settings_type.model_validate({}).search_space(0)
        values |= {key: tried[0] for key, tried in space.items() if len(tried) == 1}
    return values
