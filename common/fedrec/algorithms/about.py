"""What is said of an algorithm, and what it goes with: prose and policy, behind the mathematics.

An algorithm's class says what it computes. Everything that others say about it, refuse because of
it or try with it stands in one record, at the end of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedrec.algorithms.declarations import AlgorithmSettings
from fedrec.updates.settings import UpdateSettings

Problem = tuple[tuple[str, ...], str]
"""Dotted keys of settings, the one to change first, and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What an algorithm's warnings may depend on.

    Attributes:
        settings: the algorithm's own.
        update: the section `update`.
        n_items: size of the catalogue; 0 where nobody knows.
        n_rounds: training rounds that will be published.
        minimum_item_users, minimum_clients: as in the plan.
        under_noise: whether noise lies on the sums.
    """

    settings: AlgorithmSettings
    update: UpdateSettings
    n_items: int
    n_rounds: int
    minimum_item_users: int
    minimum_clients: int
    under_noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an update structure asks of an algorithm's settings.

    Attributes:
        settings: the one value that works, by the name of a setting.
        reason: why others do not, a sentence.
    """

    settings: Mapping[str, object]
    reason: str


def _no_contradiction(settings: AlgorithmSettings) -> Problem | None:
    return None


def _no_warnings(at: Circumstances) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What others need to know of an algorithm that they do not name.

    Attributes:
        summary: what it is in a few words, where one is chosen.
        updates, protections, protocols: what it can be combined with, any with any other; no
            protections means every one.
        combination_reason: why it goes with nothing else.
        needs: by update structure among `updates`, with which of its settings alone it goes.
        contradiction: what is wrong with its own settings among each other, or None.
        warnings: what somebody who chooses its settings should know.
        clips: whether `update.clip` and `update.fraction_bits` have a say in what users
            contribute; settings without a use are refused.
        range_instead: what stands in for `update.clip` where it has no say, as a clause.
        not_under_noise: why noise on its sums and a fixed divisor have no meaning; empty where
            they do, as for sums of changes that are divided by the number of users.
        needs_everybody: why rounds over different clients do not belong together, as a clause
            about "every round"; empty where they do. A function where it depends on the settings.
        exact: whether what users contribute follows from their data and the version alone. Then
            rounds count nobody, and all of them are over those who took part in the count round.
        exposed_in_the_clear: what a coordinator without encryption reads of a client; then the
            plan is refused under "none" unless it is accepted on the command line.
        exposed_to_members: what a member reads of others' users who alone hold an item, if it
            raises the item's count; as a clause.
        divergence_remedy: what to change when training diverges.
        shortfall: which settings to change when the model is worth less than counting.
        starter: settings by dotted key that were tuned on MovieLens-100K's validation items, for
            a first settings file and the demonstration; None where there are none.
        grid: settings that tuning tries unless it is told which, as text by dotted key.
        audit: what its sums are about: single items, pairs of them, or sums over such pairs.
        modules: what it imports besides torch, of packages that fedrec doesn't always bring.
    """

    summary: str = ""
    updates: tuple[str, ...] = ("dense",)
    protections: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ("full", "sampled", "paper")
    combination_reason: str = "the algorithm names no other that it was made for."
    needs: Mapping[str, Needs] = field(default_factory=dict)
    contradiction: Callable[[AlgorithmSettings], Problem | None] = _no_contradiction
    warnings: Callable[[Circumstances], list[str]] = _no_warnings
    clips: bool = True
    range_instead: str = "exact counts, none of which is clipped or rounded"
    not_under_noise: str = (
        "nobody has said what its sums mean with noise and divided by a fixed number"
    )
    needs_everybody: str | Callable[[AlgorithmSettings], str] = ""
    exact: bool = False
    exposed_in_the_clear: str = ""
    exposed_to_members: str = ""
    divergence_remedy: str = "Lower the step sizes among the settings of algorithm.name."
    shortfall: str = "rounds.total and the rates in the section algorithm"
    starter: Mapping[str, object] | None = None
    grid: tuple[Mapping[str, str], ...] = ()
    audit: Literal["rows", "pairs", "sketches"] = "rows"
    modules: tuple[str, ...] = ()

    def needs_everybody_with(self, settings: AlgorithmSettings) -> str:
        """Return `needs_everybody` of these settings."""
        found = self.needs_everybody
        return found if isinstance(found, str) else found(settings)
