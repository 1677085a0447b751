"""The table of combinations as a page: what goes with what, under which settings, and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedrec.algorithms import ALGORITHMS
from fedrec.config.combinations import COMBINATIONS, Combination
from fedrec.config.explain import as_toml
from fedrec.evaluation.metrics import PROTOCOLS
from fedrec.protection import PROTECTIONS
from fedrec.updates import UPDATES

__all__ = ["combinations_markdown"]


def combinations_markdown(combinations: Sequence[Combination] = COMBINATIONS) -> str:
    """Return Markdown tables of a table of combinations, with the reason for every refusal."""
    columns: tuple[tuple[str, tuple[str, ...], Callable[[Combination, str], str]], ...] = (
        ("Update structures", tuple(UPDATES), _structure),
        ("Protections", tuple(PROTECTIONS), lambda row, name: _yes(name in row.protections)),
        ("Protocols", PROTOCOLS, lambda row, name: _yes(name in row.protocols)),
    )
    lines: list[str] = []
    for title, choices, cell in columns:
        lines += [f"## {title}", "", f"| algorithm | {' | '.join(f'`{c}`' for c in choices)} |"]
        lines.append("|---" * (1 + len(choices)) + "|")
        for row in combinations:
            cells = " | ".join(cell(row, choice) for choice in choices)
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
    if name not in row.updates or name not in about.needs:
        return ""
    asked = about.needs[name].settings.items()
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
    for name in row.updates:
        needs = _needs(row, name)
        if needs:
            reason = ALGORITHMS[row.algorithm].about.needs[name].reason
            yield _refusal(row, f"`{name}` without {needs}", reason)


def _refusal(row: Combination, refused: str, reason: str) -> str:
    return f"| `{row.algorithm}` | {refused} | {reason} |"
