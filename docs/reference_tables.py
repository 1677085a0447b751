"""Tables of the reference: all settings, and all combinations with reasons for refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from fedrec.algorithms import ALGORITHMS, Wrapper
from fedrec.evaluation.metrics import PROTOCOLS
from fedrec.plan.combinations import COMBINATIONS, Combination
from fedrec.plan.schema import NAMED, Plan
from fedrec.protection import PROTECTIONS
from fedrec.section import as_toml
from fedrec.settings.explain import explain, section_sentences
from fedrec.updates import UPDATES


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def settings_markdown() -> str:
    """Return the reference of all settings as Markdown, one table for each section."""
    lines = []
    for section, sentence in section_sentences().items():
        shared = "plan: all parties agree on it" if section in Plan.model_fields else "local"
        lines += [f"## `[{section}]`", "", f"{sentence} ({shared})", ""]
        for owner, settings in groupby(explain(section), key=lambda setting: setting.owner):
            if owner:
                own = inspect.getdoc(NAMED[section][1][owner].settings_type) or ""
                lines += [f'### `name = "{owner}"`', "", own.partition("\n\n")[0], ""]
            lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
            for setting in settings:
                shown = setting.default_in_words or f"`{as_toml(setting.default)}`"
                cells = (f"`{setting.key}`", shown, setting.allowed, setting.sentence)
                lines.append(f"| {' | '.join(cell(text) for text in cells)} |")
            lines.append("")
    return "\n".join(lines)


def combinations_markdown(combinations: Sequence[Combination] = COMBINATIONS) -> str:
    """Return Markdown tables of a table of combinations, with the reason for every refusal."""
    columns: tuple[tuple[str, tuple[str, ...], Callable[[Combination, str], str]], ...] = (
        ("Update structures", tuple(UPDATES), _structure),
        ("Protections", tuple(PROTECTIONS), lambda row, name: _yes(name in row.protections)),
        ("Protocols", PROTOCOLS, lambda row, name: _yes(name in row.protocols)),
    )
    lines: list[str] = []
    for title, choices, shown in columns:
        lines += [f"## {title}", "", f"| algorithm | {' | '.join(f'`{c}`' for c in choices)} |"]
        lines.append("|---" * (1 + len(choices)) + "|")
        for row in combinations:
            cells = " | ".join(shown(row, choice) for choice in choices)
            lines.append(f"| `{row.algorithm}` | {cells} |")
        lines.append("")
    lines += ["## Why not", "", "| algorithm | refused | reason |", "|---|---|---|"]
    lines += [line for row in combinations for line in _refusals(row)]
    return "\n".join(lines) + "\n"


def _yes(goes: bool) -> str:
    return "yes" if goes else "no"


def _structure(row: Combination, name: str) -> str:
    needs = _needs(row, name)
    return f"with {needs}" if needs else _yes(name in row.updates)


def _needs(row: Combination, name: str) -> str:
    """Return the settings without which an update structure is refused."""
    about = ALGORITHMS[row.algorithm].about
    if name not in row.updates or name not in about.supports.needs:
        return ""
    asked = about.supports.needs[name].settings.items()
    return " and ".join(f"`algorithm.{key} = {as_toml(value)}`" for key, value in asked)


def _refusals(row: Combination) -> Iterator[str]:
    refused = [
        name
        for choices, allowed in (
            (UPDATES, row.updates),
            (PROTECTIONS, row.protections),
            (PROTOCOLS, row.protocols),
        )
        for name in choices
        if name not in allowed
    ]
    if refused:
        yield _refusal(row, ", ".join(f"`{name}`" for name in refused), row.reason)
    if issubclass(ALGORITHMS[row.algorithm], Wrapper):
        for base, kind in ALGORITHMS.items():
            if kind.about.supports.protections and getattr(kind, "mixes_with", ""):
                others = [
                    f"`{one}`" for one in PROTECTIONS if one not in kind.about.supports.protections
                ]
                yield _refusal(
                    row, f"{', '.join(others)} around `{base}`", kind.about.supports.reason
                )
    for name in row.updates:
        needs = _needs(row, name)
        if needs:
            reason = ALGORITHMS[row.algorithm].about.supports.needs[name].reason
            yield _refusal(row, f"`{name}` without {needs}", reason)


def _refusal(row: Combination, refused: str, reason: str) -> str:
    return f"| `{row.algorithm}` | {refused} | {reason} |"
