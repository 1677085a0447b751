"""The result of a simulation: its rates and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrec.data.catalogue import Catalogue
from fedrec.data.interactions import user_groups
from fedrec.data.splits import UserSplit
from fedrec.environment import Provenance
from fedrec.errors import NoInformation
from fedrec.evaluation.chance import no_learning_rates
from fedrec.evaluation.metrics import MetricSums, Protocol, Rates, Split, rates_of_ranks
from fedrec.evaluation.protocols import held_out_ranks
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.cautions import marked, protocol_cautions
from fedrec.recommender import ModelFile, Recommender, UsersFile, Vectors
from fedrec.settings.schema import Settings
from fedrec.showing import Tabular
from fedrec.training.learner import Learner
from fedrec_lab.reports.comparison_table import (
    RESAMPLES,
    ComparisonRow,
    ComparisonTable,
    PairedBootstrap,
    Sample,
    columns_of,
    metric_rows,
    paired_bootstrap,
)
from fedrec_lab.reports.drawing import as_element, why_no_figures
from fedrec_lab.reports.figures import quality_by_round
from fedrec_lab.reports.result_row import REFERENCE_LABELS, ResultRow, reference_rows, shortfall
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.silos_tail import TAIL, SilosTail, measure_silos

_SCORES_AT_ONCE = 1 << 26


def model_ranks(
    learner: Learner, version: Version, users: UserSplit, split: Split = "test"
) -> NDArray[np.float64]:
    """Return expected 0-based ranks under a version of the model. Users without an item get -1.

    Args:
        users: all users, in the order of the version's private vectors.
    """
    ranks = np.full(len(users), -1.0)
    for rows, scores in learner.local.score_blocks(version.shared, users, version.private):
        ranks[rows] = _ranks(learner, scores, users.select(rows), split)
    return ranks


def popularity_ranks(
    learner: Learner, version: Version, users: UserSplit, split: Split = "test"
) -> NDArray[np.float64]:
    """Return expected 0-based ranks under the counts of holders, as `model_ranks` does."""
    ranks = np.full(len(users), -1.0)
    holders = version.shared.holders
    if holders is None:
        return ranks
    scores = torch.from_numpy(holders.astype(np.float64)).to(learner.local.device)
    at_once = max(1, _SCORES_AT_ONCE // max(1, learner.server.n_items))
    for start in range(0, len(users), at_once):
        rows = np.arange(start, min(len(users), start + at_once))
        ranks[rows] = _ranks(learner, scores.expand(len(rows), -1), users.select(rows), split)
    return ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserRanks:
    """Every user's rank of its held-out item, or -1 if it has no such item.

    Attributes:
        model: the ranks under the chosen version, float64 (n_users,).
        popularity: the ranks under the counts of holders, float64 (n_users,).
    """

    model: NDArray[np.float64]
    popularity: NDArray[np.float64]


def user_ranks(result: SimulationResult, split: Split = "test") -> UserRanks:
    """Return the ranks under a simulation's best version, and under popularity."""
    learner = Learner.of(result.settings.client, result.settings.plan, len(result.catalogue))
    return UserRanks(
        model=model_ranks(learner, result.best, result.users, split),
        popularity=popularity_ranks(learner, result.best, result.users, split),
    )


def against_popularity(ranks: UserRanks, *, at: int, seed: int = 0) -> PairedBootstrap:
    """Compare the NDCG of the best version with the NDCG of popularity, over users.

    Args:
        at: the K of NDCG@K.

    Raises:
        DataError: no user has a held-out item.
    """
    return paired_bootstrap(ranks.model, ranks.popularity, at=at, seed=seed)


def _ranks(
    learner: Learner, scores: torch.Tensor, users: UserSplit, split: Split
) -> NDArray[np.float64]:
    plan = learner.server.plan
    return held_out_ranks(
        scores, users, split, protocol=plan.evaluation.protocol, seed=plan.federation.seed
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """A version of the model, with the private vectors that belong to it.

    Attributes:
        round: the round that published it.
        validation_ndcg: what validation measured, None if it was not measured.
    """

    round: RoundId
    shared: SharedState
    private: PrivateState
    validation_ndcg: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult(Tabular):
    """A simulation that ended or was stopped.

    Attributes:
        users: all users, in the order of the private vectors.
        rounds: one report for each round, from round 1 on.
        best: the earliest version with the highest NDCG on validation. Without measurements it is
            the last one, and under privacy the last measured one.
        last: the last version.
        evaluations: sums of the final evaluation with all references, by protocol. Empty when
            stopped before.
        finished: whether the federation reached its end.
        provenance: the training path and arithmetic, with accepted changes.
        budget_spent: whether it ended because a further round would exceed the privacy budget.
        uninformed: why the best version must not be used under noise, or None if it may.
        n_clients: parties among which the users were divided.
        tail: what their own scores change, see `with_tail`.
    """

    settings: Settings
    catalogue: Catalogue
    users: UserSplit
    rounds: tuple[RoundReport, ...]
    best: Version
    last: Version
    evaluations: Mapping[Protocol, MetricSums]
    finished: bool
    provenance: Provenance
    budget_spent: bool = False
    uninformed: NoInformation | None = None
    n_clients: int = 1
    tail: SilosTail | None = None

    def columns(self) -> Mapping[str, list[Any]]:
        """Return the metrics, one row for each scorer, split and round."""
        return columns_of(metric_rows(self.rounds, self.evaluation))

    def __repr__(self) -> str:
        plan, best = self.settings.plan, self.best_report
        found = "nothing measured"
        if best is not None and best.test is not None:
            found = (
                f"round {self.best.round} chosen: NDCG@{plan.evaluation.at} {best.test.ndcg:.4f}"
            )
        ended = "finished" if self.finished else "stopped"
        return (
            f"SimulationResult({plan.algorithm.name} ({plan.update.structure}), "
            f"{len(self.rounds)} rounds, {ended}, {found})"
        )

    def _repr_html_(self) -> str:
        evaluation, table = self.settings.evaluation, self.comparison()
        measured = any(report.validation is not None for report in self.rounds)
        figure = ""
        if measured and not why_no_figures():
            plot = quality_by_round(
                self.rounds,
                at=evaluation.at,
                protocol=marked(evaluation.protocol, self.cautions.get(evaluation.protocol, "")),
                best_version=int(self.best.round),
            )
            figure = f"<figure>{as_element(plot)}</figure>"
        return f"<p>{escape(repr(self))}</p>{table._repr_html_()}{figure}"

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The measured protocols. The plan's protocol is the first."""
        also = (found.protocol for report in self.rounds for found in report.also)
        return tuple(dict.fromkeys((self.settings.evaluation.protocol, *also)))

    @property
    def evaluation(self) -> MetricSums | None:
        """The final evaluation under the plan's protocol. None when stopped before."""
        return self.evaluations.get(self.settings.evaluation.protocol)

    @property
    def best_report(self) -> RoundReport | None:
        """The round that measured the best version: the one after it."""
        for report in self.rounds:
            if report.round == self.best.round + 1 and report.test is not None:
                return report
        return None

    def chosen(self, protocol: Protocol) -> tuple[int, Rates] | None:
        """Return the version that was best on a protocol's validation, and its test rates.

        Of equal versions it is the earliest, or None if nothing was measured. Under privacy it is
        the last one: a choice by what was measured would be a release without noise.
        """
        last = self._is_noisy
        best: tuple[float, int, Rates] | None = None
        own = self.settings.evaluation.protocol
        for report in self.rounds:
            validation = report.rates(protocol, "validation", of_plan=own)
            test = report.rates(protocol, "test", of_plan=own)
            if validation is None or test is None:
                continue
            if best is None or validation.ndcg > best[0] or last:
                best = (validation.ndcg, int(report.round) - 1, test)
        return None if best is None else best[1:]

    def on_validation(self, method: str, protocol: Protocol) -> Rates | None:
        """Return the rates of the chosen version, or of a baseline, on validation.

        Args:
            method: the algorithm, or a baseline's name in the table.
        """
        if method == TAIL:
            # With weights that other users chose, or the figure would be too optimistic.
            if self.tail is None or protocol != "full":
                return None
            return rates_of_ranks(self.tail.crossed, self.settings.evaluation.at)
        if method != self.settings.algorithm.name:
            sums = self.evaluations.get(protocol)
            scorer = next((name for name, _ in REFERENCE_LABELS if name == method), None)
            return None if sums is None or scorer is None else sums.rates(scorer, "validation")
        chosen, own = self.chosen(protocol), self.settings.evaluation.protocol
        if chosen is None:
            return None
        of_round = (report for report in self.rounds if int(report.round) - 1 == chosen[0])
        return next(of_round).rates(protocol, "validation", of_plan=own)

    @property
    def _is_noisy(self) -> bool:
        return self.settings.privacy.mechanism != "none"

    @property
    def shortfall(self) -> str:
        """Return a warning if popularity is as good as the chosen version, else an empty string."""
        report = self.best_report
        validation = None if report is None else report.validation
        return shortfall(self.settings.plan, validation, self.evaluation, self.rounds)

    def rows(self) -> tuple[ResultRow, ...]:
        """Return the result table on test: the chosen model first, then the references."""
        report = self.best_report
        own = () if report is None or report.test is None else (report.test,)
        name = self.settings.algorithm.name
        how = "the last round" if self._is_noisy else "round chosen on validation"
        model = ResultRow(
            label=f"{name} ({self.settings.update.structure}), round {self.best.round}",
            samples=own,
            note="; ".join(filter(None, (how, self.shortfall))),
        )
        references = () if self.evaluation is None else reference_rows(self.evaluation)
        local = tuple(
            ResultRow(label=row.label, samples=(row.samples[protocol][0].rates,), note=row.note)
            for row in self._tail_rows()
            if (protocol := self.settings.evaluation.protocol) in row.samples
        )
        return ((model, *local) if own else ()) + references

    def _tail_rows(self) -> tuple[ComparisonRow, ...]:
        """Return the row of the model with the silos' own scores, if they were measured.

        It is about the version that is kept, which other protocols may not have chosen.
        """
        if self.tail is None:
            return ()
        at, seed = self.settings.evaluation.at, self.settings.federation.seed
        samples, differences = {}, {}
        for protocol, (shared, local) in self.tail.test.items():
            chosen, rates = self.chosen(protocol), rates_of_ranks(local, at)
            if rates is None or chosen is None or chosen[0] != self.best.round:
                continue
            samples[protocol] = (Sample(seed=seed, rates=rates, chosen=self.tail.weights),)
            differences[protocol] = paired_bootstrap(shared, local, at=at, n_resamples=RESAMPLES)
        label = f"{self.settings.algorithm.name} with tail at home"
        note = self.tail.verdict(at)
        return (
            ComparisonRow(
                method=TAIL, label=label, samples=samples, note=note, differences=differences
            ),
        )

    def comparison(self) -> ComparisonTable:
        """Return all protocols in one table: the model, its references, and baselines.

        Each protocol chooses its round on its own validation.
        """
        own, seed = self.settings.algorithm.name, self.settings.federation.seed
        found: dict[tuple[str, str], dict[Protocol, tuple[Sample]]] = {}

        def add(method: str, label: str, protocol: Protocol, sample: Sample) -> None:
            found.setdefault((method, label), {})[protocol] = (sample,)

        for protocol in self.protocols:
            chosen = self.chosen(protocol)
            if chosen is not None:
                sample = Sample(seed=seed, rates=chosen[1], chosen=f"round {chosen[0]}")
                label = f"{own} ({self.settings.update.structure})"
                add(own, label, protocol, sample)
        for scorer, label in REFERENCE_LABELS:
            for protocol, sums in self.evaluations.items():
                rates = sums.rates(scorer, "test")
                if rates is not None:
                    add(scorer, label, protocol, Sample(seed=seed, rates=rates))
        formula = self.no_learning()
        if formula is not None:
            add("closed_formula", "no-learning formula", "paper", Sample(seed=seed, rates=formula))
        rows = [
            ComparisonRow(
                method=method,
                label=label,
                samples=samples,
                note=self.shortfall if method == own else "",
            )
            for (method, label), samples in found.items()
        ]
        return ComparisonTable(
            rows=(*rows[:1], *self._tail_rows(), *rows[1:]),
            protocols=self.protocols,
            at=self.settings.evaluation.at,
            cautions=self.cautions,
        )

    @property
    def cautions(self) -> dict[Protocol, str]:
        """Cautions for protocols whose figures flatter every method."""
        plan = self.settings.plan
        return protocol_cautions(plan, self.users, len(self.catalogue), self.protocols)

    def no_learning(self) -> Rates | None:
        """Return the rates that the leak gives without learning, or None if there is no leak.

        The leak is that of the protocol "paper", computed by `fedrec.evaluation.chance`.
        """
        settings, holders = self.settings, self.best.shared.holders
        algorithm = algorithm_of(settings.plan, len(self.catalogue))
        if settings.evaluation.protocol != "paper" or holders is None:
            return None
        if not algorithm.derived.negatives_per_positive:
            return None
        enough = holders >= settings.federation.minimum_item_users
        return no_learning_rates(
            self.users,
            np.nonzero(enough)[0].astype(np.int64),
            n_items=len(self.catalogue),
            rounds=settings.rounds.total,
            user_fraction=settings.rounds.user_fraction,
            negatives_per_positive=algorithm.derived.negatives_per_positive,
            at=settings.evaluation.at,
        )

    def vectors(self) -> Vectors:
        """Return the vectors of users and items of the best version, with their ids.

        Raises:
            DataError: the algorithm has no vectors of users.
        """
        return self.recommender().vectors()

    def recommender(self) -> Recommender:
        """Return the best version, ready to recommend."""
        fingerprint = self.catalogue.fingerprint()
        model = ModelFile(
            plan=self.settings.plan,
            catalogue_fingerprint=fingerprint,
            round=self.best.round,
            shared=self.best.shared,
        )
        return Recommender(model, self.catalogue, UsersFile.of(self.users, self.best.private))


def with_tail(result: SimulationResult) -> SimulationResult:
    """Return a result with what its silos' own scores change, if `client.tail` is set.

    Raises:
        SettingsError: a silo has too many users.
    """
    settings, best = result.settings, result.best
    if not settings.client.tail:
        return result
    learner = Learner.of(settings.client, settings.plan, len(result.catalogue))
    found = measure_silos(
        learner,
        best.shared,
        best.private,
        result.users,
        user_groups(result.users.user_ids, result.n_clients),
        settings.client.tail_minimum_users,
        result.protocols,
    )
    return replace(result, tail=found)
