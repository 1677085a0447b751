"""A starter settings file: the choices that matter, with comments and safe values."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrec.algorithms import ALGORITHMS, STARTING_ALGORITHM
from fedrec.errors import SettingsError
from fedrec.listening import is_own_address, split_address
from fedrec.plan.schema import FederationSettings, Plan, users_with_room
from fedrec.protection import PROTECTIONS, ProtectionSettings
from fedrec.section import as_toml
from fedrec.settings.explain import all_settings, section_sentences


def _tuned(name: str, values: Mapping[str, object]) -> Plan:
    """Return the plan of an algorithm's starter, whose keys are dotted."""
    sections: dict[str, dict[str, object]] = {"algorithm": {"name": name}}
    for key, value in values.items():
        section, _, field = key.partition(".")
        sections.setdefault(section, {})[field] = value
    return Plan.model_validate(sections)


TUNED: Mapping[str, Plan] = {
    name: _tuned(name, kind.about.advice.starter)
    for name, kind in ALGORITHMS.items()
    if kind.about.advice.starter is not None
}
"""Algorithms as tuned on MovieLens-100K's validation items, for demo and starter."""

MINIMUM_ITEM_USERS = 10
"""The `federation.minimum_item_users` of a starter file."""
_FEWEST_ENCRYPTED = 3
# With a quarter over-provisioned, key holders recompute at most 63 contributions.
_MOST_SUMMED = 50
_LINE_CHARS = 88

_INTRODUCTION = """\
# The settings of a federation. Coordinator and clients read the same file: they must agree on
# the sections up to [rounds]. The others are each machine's own.
#
#   {check:<30}  what a run costs, and where each value comes from
#   fedrec check --explain [KEY]    every setting that exists, with its meaning
#
# Relative paths start at this file's folder. FEDREC_SECTION__FIELD in the environment wins over
# this file, a flag wins over both.
"""


_KITS_HAVE = """\
# `fedrec provision` writes [coordinator] and [client], with addresses and keys, into each kit.
# Settings in these sections here are copied into every such kit.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """The facts about a federation for which a starter file is made.

    Attributes:
        name: the federation's name.
        algorithm: one of `TUNED`.
        protection: the protection's name.
        clients: the clients' names, or empty if unknown.
        n_clients: the number of clients, or 0 if unknown.
        address: host:port of the coordinator, or empty for this machine.
        n_users: the number of users in the data, or 0 if unknown.
        data: the path of the interactions to write into the file, or nothing.
        catalogue: the path of the catalogue to write into the file, or nothing.
        proposed: settings in place of the starting ones, by dotted key.
        reasons: sentences at the head of the file.
    """

    name: str = "movies"
    algorithm: str = STARTING_ALGORITHM.name
    protection: str = "bfv"
    clients: tuple[str, ...] = ()
    n_clients: int = 0
    address: str = ""
    n_users: int = 0
    data: str = ""
    catalogue: str = ""
    proposed: Mapping[str, object] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in TUNED:
            raise SettingsError(
                f"There are no tuned settings for the algorithm {self.algorithm!r}.",
                remedy=f"Begin with one of {', '.join(TUNED)} and change the file.",
            )
        if self.protection not in PROTECTIONS:
            raise SettingsError(
                f"There is no protection {self.protection!r}.",
                remedy=f"Use one of {', '.join(PROTECTIONS)}.",
            )
        if self.protection != "none" and 0 < self.n_clients < _FEWEST_ENCRYPTED:
            raise SettingsError(
                f"{self.n_clients} clients were requested under {self.protection}, but a sum of "
                f"fewer than {_FEWEST_ENCRYPTED} clients is never opened.",
                remedy=f'Use {_FEWEST_ENCRYPTED} clients or more, or the protection "none".',
            )

    @property
    def plan(self) -> Plan:
        """The algorithm with the protection that the file names."""
        protection = ProtectionSettings(name=self.protection)
        return TUNED[self.algorithm].model_copy(update={"protection": protection})

    def text(self, file: str = "run.toml") -> str:
        """Return the settings file as TOML with comments."""
        values = self.values()
        lines = [_INTRODUCTION.format(check=f"fedrec check {shlex.quote(file)}")]
        for reason in self.reasons:
            lines += [f"# {line}" for line in textwrap.wrap(reason, width=_LINE_CHARS)]
        lines += [""] if self.reasons else []
        for section, sentence in section_sentences().items():
            keys = [key for key in values if key.startswith(f"{section}.")]
            if not keys:
                continue
            lines.append(f"[{section}]  # {sentence}")
            for key in keys:
                lines += self._setting(key, values[key])
            lines.append("")
        return "\n".join([*lines, _KITS_HAVE] if self.clients else lines)

    def _by_hand(self) -> dict[str, object]:
        """Return the settings of the coordinator and a client for use without kits."""
        address = self.address or "127.0.0.1:7447"
        host, port = split_address(address, "parties.address")
        return {
            "coordinator.host": host if is_own_address(host) else "0.0.0.0",
            "coordinator.port": port,
            "coordinator.epoch": "keys/epoch.json",
            "coordinator.certificate": "keys/coordinator.pem",
            "coordinator.operators": "keys/operator.crt",
            "client.coordinator": address,
            "client.authority_key": "keys/authority.pub.json",
            "client.certificate": None,
            "client.invitation": None,
        }

    def _setting(self, key: str, value: object) -> list[str]:
        setting = all_settings(self.algorithm, self.protection)[key]
        comment = textwrap.wrap(setting.sentence, width=_LINE_CHARS)
        shown = f"{setting.name} = {as_toml(value)}"
        if value is None:
            shown = f"# {setting.name} = "
            shown += '""' if setting.default is None else as_toml(setting.default)
        return [*(f"# {line}" for line in comment), shown]

    def values(self) -> dict[str, object]:
        """Return the values of the file. None shows a setting as a comment."""
        tuned, about = TUNED[self.algorithm], ALGORITHMS[self.algorithm].about
        summed = min(self.n_clients, _MOST_SUMMED)
        least = _FEWEST_ENCRYPTED if self.protection != "none" else 1
        enough = -(-2 * summed // 3)
        if self.plan.has_cells:
            # If a client is away, its whole cell sits out. With a single cell, rounds do not wait
            # for a client that left.
            n_cells = max(1, summed // _FEWEST_ENCRYPTED)
            enough = min(enough, summed - -(-summed // n_cells))
        room = users_with_room(self.n_users) if self.n_users else 0
        opened = PROTECTIONS[self.protection].needs_reveal
        default_room = FederationSettings.model_fields["maximum_users"].default
        values: dict[str, object] = {
            "federation.name": self.name,
            "federation.seed": 1,
            "federation.maximum_users": room or default_room,
            "federation.minimum_item_users": MINIMUM_ITEM_USERS,
            **{f"algorithm.{key}": value for key, value in tuned.algorithm.model_dump().items()},
            "update.structure": tuned.update.structure,
            **({} if tuned.update.structure == "dense" else {"update.rank": tuned.update.rank}),
            **({} if about.range_instead else {"update.clip": tuned.update.clip}),
            "protection.name": self.protection,
            "protection.preset": PROTECTIONS[self.protection].presets[0],
            **({"protection.key_holder": self.plan.protection.key_holder} if opened else {}),
            "evaluation.protocol": "full",
            "evaluation.at": 10,
            "rounds.total": tuned.rounds.total,
            "rounds.minimum_clients": max(least, enough) if summed else 3,
            "rounds.minimum_summands": 3,
        }
        if about.needs_all_clients and self.n_clients:
            if not self.plan.has_cells:
                values["rounds.minimum_clients"] = self.n_clients
            if self.n_clients > _MOST_SUMMED:
                values["rounds.recompute_limit"] = self.n_clients
        elif self.n_clients > _MOST_SUMMED:
            asked = {"rounds.clients_per_round": _MOST_SUMMED}
            if self.plan.has_cells:
                # With many members, cells of three have at most four.
                asked = {"rounds.cells_per_round": _MOST_SUMMED // 4}
            values |= asked | {"rounds.over_provision": 1.25}
        return values | {
            **self.proposed,
            "data.path": self.data or None,
            "data.catalogue": self.catalogue or None,
            **({} if self.clients else self._by_hand()),
            "output.runs": "runs",
            "parties.address": self.address or None,
            "parties.clients": list(self.clients) or None,
            "parties.go_on": None,
        }
