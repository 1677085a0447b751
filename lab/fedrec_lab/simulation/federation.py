"""A federation in one process: its parties' sums, with noise if the plan has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.clock import Clock
from fedrec.data.catalogue import Catalogue
from fedrec.data.splits import UserSplit
from fedrec.environment import provenance_of
from fedrec.errors import (
    InternalError,
    NoInformation,
    SettingsError,
    SumOutOfBounds,
    TrainingError,
)
from fedrec.evaluation.metrics import MetricSums, Protocol
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.model.tables import room_in
from fedrec.plan.agreement import FORMS
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.exposure import check_users
from fedrec.plan.layout import vector_spec
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import cells_in_use, held_in_cells
from fedrec.protection import PROTECTIONS, Protection, VectorSpec
from fedrec.protection.rehearsal import check_summands, rehearse
from fedrec.recommender.recommender import check_information
from fedrec.settings.schema import Settings
from fedrec.training.evaluator import Segments
from fedrec.training.learner import Contribution
from fedrec.training.personalising import TrainedUsers, personalised
from fedrec.training.starting import check_start
from fedrec.wire.messages import RoundKind
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.checkpoint import Checkpoint, CheckpointFolder, simulation_identity
from fedrec_lab.simulation.parties import (
    Arrangement,
    Party,
    counted_holders,
    join_private,
    make_parties,
    simulated_participants,
    split_private,
)
from fedrec_lab.simulation.result import SimulationResult, Version

AddUp = Callable[[Sequence[NDArray[np.int64]], VectorSpec], NDArray[np.int64]]
"""Adds a round's vectors exactly, int64 (length,). Takes the vectors and their spec."""


def add_integers(vectors: Sequence[NDArray[np.int64]], spec: VectorSpec) -> NDArray[np.int64]:
    """Return the sum of vectors that nothing protects."""
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total


def make_adder(
    plan: Plan, largest: VectorSpec, *, n_clients: int, protect: bool
) -> tuple[AddUp, Protection]:
    """Return the adder of a run's rounds, and the protection of its largest vector.

    Args:
        largest: a vector into which every round's fits.
        protect: do what clients, coordinator and key holders do: protect, add and reveal, which
            takes time and changes no bit.

    Raises:
        SettingsError: the protection cannot protect this vector, or that many clients.
    """
    name = plan.protection.name
    kind = PROTECTIONS[name]
    chosen = kind.plan(largest, preset=plan.protection.preset)
    protection = kind(largest, chosen)
    if not protect:
        return add_integers, protection
    check_summands(protection, n_clients)
    return rehearse(protection, plan.protection, n_clients).add_up, protection


def add_segments(segments: Sequence[Segments]) -> dict[Protocol, MetricSums]:
    """Return the sums measured under further protocols, which are never protected."""
    total: Segments = {}
    for found in segments:
        for protocol, values in found.items():
            total[protocol] = total[protocol] + values if protocol in total else values
    return {protocol: MetricSums(values) for protocol, values in total.items()}


class PrivacyAccount:
    """Counts every user's training rounds, as each client does in a federation.

    Coins follow from the public seed here, so that charging the rounds of a checkpoint again
    brings back the counts.

    Args:
        user_keys: identities of all users, int64 (n_users,).
    """

    def __init__(self, plan: Plan, user_keys: NDArray[np.int64]) -> None:
        self._plan = plan
        self._mechanism = mechanism_of(plan)
        self._user_keys = user_keys
        self._rounds = np.zeros(len(user_keys), dtype=np.int64)
        self._n_sums = 0

    @property
    def is_on(self) -> bool:
        """Whether sums carry noise."""
        return self._mechanism is not None

    @property
    def allows_another(self) -> bool:
        """Whether the budget has room for one more sum."""
        # A simulation abandons no round, so it publishes every sum.
        return self._mechanism is None or self._mechanism.allows_another(self._n_sums, self._n_sums)

    def participants(self, kind: RoundKind, round_id: RoundId) -> NDArray[np.bool_] | None:
        """Return the users that take part in a round, bool (n_users,), or None for all."""
        coins = simulated_participants(
            self._user_keys,
            seed=self._plan.federation.seed,
            round_id=round_id,
            fraction=self._plan.rounds.user_fraction,
            counted=self._plan.rounds.user_sampling == "count",
        )
        if self._mechanism is None or kind != "train":
            return coins
        may = self._rounds < self._mechanism.rounds_per_user
        return may if coins is None else may & coins

    def charge(self, kind: RoundKind, round_id: RoundId) -> None:
        """Count a training round for every user in it."""
        chosen = self.participants(kind, round_id)
        if self._mechanism is None or kind != "train" or chosen is None:
            return
        self._rounds += chosen
        self._n_sums += 1


def round_kind(plan: Plan, round_id: int) -> RoundKind:
    """Return the kind of a round. Rounds count from 1."""
    if round_id == 1:
        return "count"
    return "train" if round_id < plan.rounds.published else "evaluate"


class SimulatedFederation:
    """All parties of a simulation and the published model, between two rounds."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        users: UserSplit,
        arrangement: Arrangement,
        *,
        clock: Clock,
        also: Sequence[Protocol] = (),
        scratch: Path | None = None,
    ) -> None:
        plan, n_clients, protect = settings.plan, arrangement.n_clients, arrangement.protect
        holders = counted_holders(settings, len(catalogue), users, n_clients)
        check_start(plan, users, len(catalogue), also, holders=holders)
        if protect:
            check_users(plan, -(-len(users) // n_clients))
        self._cells = cells_in_use(plan, arrangement.cells, n_clients)
        self._settings = settings
        self._plan = plan
        self._catalogue = catalogue
        self._users = users
        self._user_keys = users.user_keys()
        self._clock = clock
        self._room = room_in(scratch, settings.client.memory_mib << 20)
        self._room.make_ready(len(users), algorithm_of(plan, len(catalogue)).derived.private_widths)
        self._parties = make_parties(
            settings, len(catalogue), users, n_clients, also=also, scratch=scratch
        )
        self._learner = self._parties[0].learner
        self._add_up, self._protection = make_adder(
            plan, vector_spec(plan, len(catalogue)), n_clients=n_clients, protect=protect
        )
        # Those of former releases first: this release continues their simulations.
        self._identities = tuple(
            simulation_identity(
                settings,
                catalogue.fingerprint(),
                users,
                n_clients=n_clients,
                cells=self._cells,
                form=form,
            )
            for form, known in FORMS.items()
            if not known.changed(plan)
        )
        self._provenance = provenance_of(plan, str(self._learner.local.device))
        self._account = PrivacyAccount(plan, self._user_keys)
        self._shared = self._learner.server.initial_shared()
        self._rounds: list[RoundReport] = []
        self._best: Version | None = None
        self._evaluation: Mapping[Protocol, MetricSums] = {}

    @property
    def reports(self) -> tuple[RoundReport, ...]:
        """The rounds so far."""
        return tuple(self._rounds)

    @property
    def finished(self) -> bool:
        """Whether the last round, which only measures, is over."""
        return len(self._rounds) == self._plan.rounds.published

    @property
    def budget_spent(self) -> bool:
        """Whether the next round would train beyond the privacy budget."""
        coming = RoundId(self._round + 1)
        if self.finished or round_kind(self._plan, coming) != "train":
            return False
        return not self._account.allows_another

    @property
    def in_files(self) -> bool:
        """Whether private tables outgrow memory."""
        return any(party.private.in_files for party in self._parties)

    @property
    def _round(self) -> RoundId:
        return RoundId(len(self._rounds))

    def advance(self) -> RoundReport:
        """Hold the next round. After an error nothing has changed.

        Raises:
            TrainingError: training diverged at every party.
            SettingsError: nothing can be trained after the count.
        """
        began = self._clock.now()
        round_id = RoundId(self._round + 1)
        kind = round_kind(self._plan, round_id)
        coins = self._account.participants(kind, round_id)
        number = self._shared.number
        parts = [party.contribute(kind, number, self._shared, coins) for party in self._parties]
        diverged = [part.abstained for part in parts if part.abstained]
        if len(diverged) == sum(len(party.users) > 0 for party in self._parties):
            raise TrainingError(
                f"Training diverged at all {len(diverged)} clients. At the first: {diverged[0]}"
            )
        spec = self._learner.server.travelling.layout(kind, self._shared).vector_spec
        aggregate = self._add_up(self._vectors(kind, parts), spec)
        self._check(kind, aggregate)
        if kind == "count" and self._cells:
            aggregate = self._held_widely(aggregate, parts)
        shared = self._learner.server.apply(kind, number, self._shared, aggregate)
        if kind == "count":
            self._learner.server.travelling.check(shared)
        privates = [part.private for part in parts]
        if kind == "train" and self._learner.server.algorithm.derived.personalises:
            trained = [self._trained(*each) for each in zip(self._parties, parts, strict=True)]
            shared, privates = personalised(
                self._learner.server, number, self._shared, shared, trained
            )
        sums = self._learner.server.metrics(aggregate)
        withheld = [part.withheld for part in parts if part.withheld is not None]
        if withheld:
            sums = MetricSums(np.sum(withheld, axis=0))
        further = add_segments([part.also for part in parts])
        report = RoundReport.of(
            round_id,
            kind,
            sums,
            seconds=self._clock.now() - began,
            vector_bytes=self._protection.over(spec).chosen.message_bytes,
            n_clients=len(self._parties),
            also=further,
        )
        self._keep_if_best(report)
        self._shared = shared
        for party, private in zip(self._parties, privates, strict=True):
            party.private = private
        self._account.charge(kind, round_id)
        self._rounds.append(report)
        if kind == "evaluate":
            self._evaluation = {self._plan.evaluation.protocol: sums, **further}
        return report

    @staticmethod
    def _trained(party: Party, part: Contribution) -> TrainedUsers:
        none_trained = np.zeros(len(party.users), dtype=np.bool_)
        return TrainedUsers(
            user_keys=party.users.user_keys(),
            samples=np.diff(party.users.train_indptr),
            trained=none_trained if part.trained is None else part.trained,
            private=part.private,
            room=party.learner.local.room,
        )

    def _held_widely(
        self, aggregate: NDArray[np.int64], parts: Sequence[Contribution]
    ) -> NDArray[np.int64]:
        """Leave out what the key authority would. Other rounds have no such rows.

        Raises:
            SettingsError: nothing is left.
        """
        travelling, shared = self._learner.server.travelling, self._shared
        counts = [travelling.counts("count", shared, part.vector) for part in parts]
        kept = held_in_cells(self._plan, counts, self._cells)
        if not kept.any():
            rules = self._plan.federation
            raise SettingsError(
                f"Outside {rules.corrupt_cells} of the {len(self._cells)} cells "
                f"(federation.corrupt_cells) no item is held by {rules.minimum_item_users} users "
                "(federation.minimum_item_users), so that no row would be trained.",
                remedy="Lower federation.minimum_item_users, or have fewer cells or more users.",
            )
        return travelling.with_rows("count", shared, aggregate, kept)

    def _check(self, kind: RoundKind, aggregate: NDArray[np.int64]) -> None:
        """Find out here, and not in a deployed federation, that bounds do not hold.

        Raises:
            InternalError: the algorithm sends more than its tensors declare.
        """
        try:
            self._learner.server.travelling.check_sum(
                kind,
                self._shared,
                aggregate,
                most_users=len(self._users),
                n_clients=max(len(self._parties), self._plan.fewest_summands),
            )
        except SumOutOfBounds as error:
            raise InternalError(
                f"{error.message} Federations would refuse this sum.",
                remedy=f"{self._plan.algorithm.name} sends more than its tensors declare. This is "
                "a defect of the algorithm.",
            ) from error

    def _vectors(self, kind: RoundKind, parts: Sequence[Contribution]) -> list[NDArray[np.int64]]:
        """Return the parties' vectors, with noise if sums carry it."""
        vectors = [part.vector for part in parts]
        if kind != "train" or not self._account.is_on:
            return vectors
        layout = self._learner.server.layout
        # A few parties represent the number that a round needs.
        more = max(0, self._plan.fewest_summands - len(vectors))
        return [
            layout.add_noise(vector, 1 + (more if place == 0 else 0))
            for place, vector in enumerate(vectors)
        ]

    def _keep_if_best(self, report: RoundReport) -> None:
        """Keep the version that a round started from, if the round measured it as the best.

        Under privacy the last measured one is kept, whatever it measured.
        """
        if report.validation is None:
            return
        ndcg = report.validation.ndcg
        best = None if self._best is None else self._best.validation_ndcg
        if best is None or ndcg > best or self._account.is_on:
            self._best = self._version(ndcg)

    def _version(self, validation_ndcg: float | None = None) -> Version:
        states = [party.private for party in self._parties]
        private = join_private(self._parties, states, self._room)
        return Version(
            round=self._round,
            shared=self._shared,
            private=private,
            validation_ndcg=validation_ndcg,
        )

    def result(self) -> SimulationResult:
        """Return the result so far."""
        last = self._refreshed(self._version())
        best = last if self._best is None else self._refreshed(self._best)
        return SimulationResult(
            settings=self._settings,
            catalogue=self._catalogue,
            users=self._users,
            rounds=tuple(self._rounds),
            best=best,
            last=last,
            evaluations=self._evaluation,
            finished=self.finished,
            provenance=self._provenance,
            budget_spent=self.budget_spent,
            uninformed=self._uninformed(best.shared) if self.finished else None,
            n_clients=len(self._parties),
        )

    def _uninformed(self, shared: SharedState) -> NoInformation | None:
        """Return the error of a noisy version that gives all items the same score."""
        server = self._learner.server
        if not self._account.is_on or server.algorithm.derived.keeps_vectors:
            return None
        active = server.active_items(shared)
        try:
            check_information(self._plan, server.algorithm.serving(shared, active), active)
        except NoInformation as error:
            return error
        return None

    def _refreshed(self, version: Version) -> Version:
        private = self._learner.local.refreshed(version.shared, self._users, version.private)
        return replace(version, private=private)

    def close(self) -> None:
        """End what trains in processes of its own."""
        self._learner.local.close()

    def save(self, folder: CheckpointFolder) -> None:
        """Write a checkpoint."""
        folder.save(
            Checkpoint(
                identity=self._identities[-1],
                provenance=self._provenance,
                last=self._version(),
                best=self._best,
                rounds=tuple(self._rounds),
            ),
            self._learner.server.initial_shared(),
        )

    def restore(self, folder: CheckpointFolder, *, accept_other_arithmetic: bool) -> None:
        """Return to a checkpoint of the same plan and data.

        Raises:
            RefusedError: the checkpoint was trained with different arithmetic, which was not
                accepted.
        """
        checkpoint = folder.load(self._identities, self._learner.server.initial_shared)
        self._provenance = checkpoint.provenance.continued(
            self._provenance,
            what=str(folder),
            round_id=len(checkpoint.rounds),
            now=self._clock.now(),
            accepted=accept_other_arithmetic,
        )
        self._shared = checkpoint.last.shared
        for party in self._parties:
            party.private = split_private(party, checkpoint.last.private)
        self._best = checkpoint.best
        self._rounds = list(checkpoint.rounds)
        for report in self._rounds:
            self._account.charge(report.kind, report.round)
        if self._provenance != checkpoint.provenance:
            # Written down before the first round that it is about.
            self.save(folder)
