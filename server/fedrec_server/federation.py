"""The constant part of a run: plan, catalogue, keys and protection, checked against each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrec.algorithms.declarations import HOLDER_PAIRS
from fedrec.errors import KeysError, SettingsError
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import fingerprint
from fedrec.identity.roster import Roster, check_cells
from fedrec.ids import ClientId, RoundId
from fedrec.plan.agreement import plan_fingerprint, plan_to_json
from fedrec.plan.algorithm import divides_by_count
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.protections import about_protection
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows, fewest_cells, no_active_rows
from fedrec.protection import PROTECTIONS, NoProtection, Protection, VectorSpec
from fedrec.protection.vector import Packed
from fedrec.training.bounds import SumTerms, check_sum, most_users
from fedrec.training.round_vectors import COUNTS, RoundVectors
from fedrec.wire.fields import StatedRows
from fedrec.wire.messages import PROTOCOL_VERSION, FederationInfo, RoundKind
from fedrec_server.rounds.state import Rules
from fedrec_server.store.store import RunIdentity

METRICS = "metrics"
"""The segment of the protected vector that is published in the clear."""


STREAM_SECONDS = 30.0
SLOWEST_BYTES_PER_SECOND = 100_000.0
"""The slowest line, in bytes a second, on which a client uploads a protected vector in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderCounts:
    """Users of each item, int64 (n_items,), from two count rounds, which may be the same.

    Attributes:
        first: the counts of the first round, which decide which rows travel.
        last: the counts of the last round, with which later sums are compared.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCatalogue:
    """The catalogue file that the coordinator serves, and its facts."""

    data: bytes
    fingerprint: str
    n_items: int

    @classmethod
    def load(cls, path: Path) -> PublicCatalogue:
        """Read a catalogue file."""
        from fedrec.data.catalogue import Catalogue

        catalogue = Catalogue.load(path)
        return cls(
            data=path.read_bytes(), fingerprint=catalogue.fingerprint(), n_items=len(catalogue)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The constant part of a run.

    Attributes:
        vectors: the vector of each kind of round.
        protection: the public half of the protection, for the largest vector.
    """

    plan: Plan
    plan_fingerprint: str
    catalogue: PublicCatalogue
    keys: KeyEpoch
    vectors: RoundVectors
    protection: Protection

    @classmethod
    def of(
        cls,
        plan: Plan,
        catalogue: PublicCatalogue,
        vectors: RoundVectors | VectorSpec,
        keys: KeyEpoch,
    ) -> Federation:
        """Assemble and check the parts.

        Args:
            vectors: the vector of each kind of round, or one for all rounds.

        Raises:
            SettingsError: if the vector has no public metrics segment.
            KeysError: if the keys were made for other settings, or the context holds a key.
        """
        if isinstance(vectors, VectorSpec):
            vectors = RoundVectors.fixed(vectors, catalogue.n_items)
        spec = vectors.largest
        if METRICS not in {segment.name for segment in spec.segments}:
            raise SettingsError(f"The protected vector has no segment named {METRICS!r}.")
        kind = PROTECTIONS[plan.protection.name]
        protection = kind(spec, kind.plan(spec, preset=plan.protection.preset))
        _check_keys(plan, protection, keys)
        check_cells(None, keys.roster)
        return cls(
            plan=plan,
            plan_fingerprint=plan_fingerprint(plan),
            catalogue=catalogue,
            keys=keys,
            vectors=vectors,
            protection=protection,
        )

    def protection_of(self, kind: RoundKind, rows: StatedRows) -> Protection:
        """Return the protection of a round's vector.

        Raises:
            SettingsError: nothing can be trained with this number of rows.
        """
        return _over(self.protection, self.vectors.of_round(kind, rows.n_rows))

    def problem_with(self, rows: StatedRows) -> str:
        """Return why nothing can be trained with a count round's rows, or an empty string."""
        if not rows.n_rows:
            return no_active_rows(self.plan).message
        try:
            self.protection_of("train", rows)
        except SettingsError as error:
            return error.message
        return ""

    def following(self, keys: KeyEpoch) -> Federation:
        """Return the same federation in a later key epoch of the same authority.

        Raises:
            RosterBreaksCells: its cells do not follow from the current ones.
            KeysError: if the epoch is not later, or belongs to a different authority or settings.
        """
        present, wanted = self.keys.roster, keys.roster
        if wanted.authority_key != present.authority_key:
            raise KeysError(
                f"Authority {fingerprint(wanted.authority_key)[:16]} signed it, but "
                f"{fingerprint(present.authority_key)[:16]} signed epoch {present.epoch}.",
                remedy="Members pinned one authority. Use the folder that has its key.",
            )
        if wanted.epoch <= present.epoch:
            raise KeysError(
                f"Epoch {wanted.epoch} is not above {present.epoch}, the newest one known here.",
                remedy=f"Create one with `fedrec keys rotate --epoch {present.epoch + 1}`.",
            )
        check_cells(present, wanted)
        _check_keys(self.plan, self.protection, keys)
        return replace(self, keys=keys)

    @property
    def roster(self) -> frozenset[ClientId]:
        """Return the roster in force."""
        return frozenset(member.client_id for member in self.keys.roster.members)

    @property
    def identity(self) -> RunIdentity:
        """Return the identity that a state folder is bound to."""
        return RunIdentity(
            federation=self.plan.federation.name,
            plan_fingerprint=self.plan_fingerprint,
            catalogue_fingerprint=self.catalogue.fingerprint,
            epoch=self.keys.roster.epoch,
        )

    def rules(self, run: str) -> Rules:
        """Return the rules for the state machine."""
        mechanism, revealer = mechanism_of(self.plan), self.keys.roster.revealer
        rules = Rules(
            run=run,
            epoch=self.keys.roster.epoch,
            seed=self.plan.federation.seed,
            needs_reveal=self.protection.needs_reveal,
            rounds=self.plan.rounds,
            fewest_revealed=self.keys.roster.minimum_summands,
            most_summands=self.protection.chosen.max_summands,
            hides_updates=self.protection.hides_updates,
            steps=self.protection.steps,
            vector_seconds=STREAM_SECONDS
            + self.protection.chosen.message_bytes / SLOWEST_BYTES_PER_SECOND,
            mechanism=mechanism,
            charges_updates=mechanism is not None
            and mechanism.kind == "laplace"
            and (self.protection.needs_reveal or not self.protection.hides_updates),
            exact=divides_by_count(self.plan),
            revealer=None if revealer is None else revealer.client_id,
            n_items=self.vectors.n_items,
            entries=self.protection.chosen if self.protection.chosen.entries else None,
            partition=self.keys.roster.partition,
            fewest_clients=0,
            fewest_cells=fewest_cells(self.plan, self.keys.roster.partition),
        )
        return replace(
            rules,
            fewest_clients=about_protection(self.protection.name).fewest_clients(
                self.plan.protection, rules.needed, len(self.keys.roster.members)
            ),
        )

    def info(self, run: str, client_id: ClientId, published: RoundId) -> FederationInfo:
        """Return the facts that a client learns first."""
        return FederationInfo(
            protocol_version=PROTOCOL_VERSION,
            federation=self.plan.federation.name,
            run=run,
            plan_json=plan_to_json(self.plan),
            catalogue_fingerprint=self.catalogue.fingerprint,
            n_items=self.catalogue.n_items,
            epoch=self.keys.roster.epoch,
            roster_json=_written(self.keys.roster),
            server_context=self.keys.server_context,
            wrapped_secrets=self.keys.secrets_for(client_id),
            published_round=published,
        )

    @property
    def metrics_bytes(self) -> int:
        """Return the length of a statement's metrics, in bytes."""
        segments = self.vectors.largest.segments
        return 8 * next(s.length for s in segments if s.name == METRICS)

    def parts_of_sum(
        self, kind: RoundKind, rows: StatedRows, total: bytes, n_summands: int
    ) -> dict[str, Packed]:
        """Return the readable segments of a sum by name, as they are packed in it."""
        # With the clients' help, the sum is packed as it would be without protection.
        spec = self.protection_of(kind, rows).spec
        plain = NoProtection(spec, NoProtection.plan(spec))
        return plain.parts_of_sum(total, n_summands)

    def read_sum(
        self,
        kind: RoundKind,
        rows: StatedRows,
        total: bytes,
        clients: Collection[ClientId],
        run: str,
        *,
        counted: HolderCounts | None = None,
        trained: int = 0,
    ) -> tuple[bytes, StatedRows | None]:
        """Return the metrics, and after a count the rows, of a sum that the coordinator can read.

        Args:
            clients: the clients whose updates are in it.
            counted: users of each item, or None before the count round.
            trained: the number of published training rounds.

        Returns:
            The metrics, little-endian int64, and after a count round the rows that travel from now
            on.

        Raises:
            SumOutOfBounds: no honest updates add up to it.
        """
        found = self.parts_of_sum(kind, rows, total, len(clients))
        if METRICS not in found:
            raise SettingsError(f"The protected vector has no segment named {METRICS!r}.")
        self._check_sum(kind, rows, found, clients, counted, trained)
        travelling = None
        if kind == "count" and self.vectors.least:
            active = self.vectors.rows_of(found[COUNTS].astype(np.int64))
            travelling = active.stated(self.plan.federation.name, run)
        return found[METRICS].astype("<i8").tobytes(), travelling

    def _check_sum(
        self,
        kind: RoundKind,
        rows: StatedRows,
        found: Mapping[str, Packed],
        clients: Collection[ClientId],
        counted: HolderCounts | None,
        trained: int,
    ) -> None:
        if self.vectors.layouts is None:
            return
        layout = self.vectors.layouts(kind, rows.n_rows)
        covered = ActiveRows.whole(self.vectors.n_items)
        if kind != "count" and counted is not None:
            covered = ActiveRows.of(self.plan, self.vectors.n_items, counted.first)
        pairs = [tensor for tensor in layout.tensors if tensor.counted_by == HOLDER_PAIRS]
        check_sum(
            SumTerms(
                kind=kind,
                layout=layout,
                rows=covered,
                most_users=most_users(self.plan, self.keys.roster, clients),
                n_clients=len(clients),
                holders=None if counted is None else counted.last,
                least=self.vectors.least,
                begun={tensor.name: trained * tensor.size for tensor in pairs},
            ),
            found,
            found[COUNTS],
            found[METRICS],
        )


@lru_cache(maxsize=8)
def _over(protection: Protection, spec: VectorSpec) -> Protection:
    return protection.over(spec)


@lru_cache(maxsize=2)
def _written(roster: Roster) -> bytes:
    """Return a roster as JSON, cached because every member asks for it."""
    return roster.to_json()


def _check_keys(plan: Plan, protection: Protection, keys: KeyEpoch) -> None:
    roster = keys.roster
    problems = [
        f"{what} is {found}, expected {wanted}"
        for what, found, wanted in (
            ("federation", roster.federation, plan.federation.name),
            ("protection", roster.protection, plan.protection.name),
            ("key holder", roster.key_holder, "authority" if plan.authority_opens else "members"),
            ("division into cells", bool(roster.partition.cell_size), plan.has_cells),
            (
                "protection fingerprint",
                roster.protection_fingerprint[:16],
                protection.chosen.fingerprint()[:16],
            ),
        )
        if found != wanted
    ]
    if problems:
        raise KeysError(
            f"The key epoch was made for other settings: {', '.join(problems)}.",
            remedy="Ask the key authority for a new epoch, or use the settings and the release of "
            "fedrec that this one was made for.",
        )
    protection.envelope(keys.server_context)
