"""What a coordinator serves: plan, catalogue, keys and protection, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fedrec.config.plan import plan_fingerprint, plan_to_json
from fedrec.config.schema import Plan
from fedrec.errors import KeysError, SettingsError
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import fingerprint
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId, RoundId
from fedrec.privacy import mechanism_of
from fedrec.protection import PROTECTIONS, NoProtection, Protection, VectorSpec
from fedrec.wire.messages import PROTOCOL_VERSION, FederationInfo
from fedrec_server.rounds.state import Rules
from fedrec_server.store.store import RunIdentity

__all__ = ["METRICS", "Federation", "PublicCatalogue"]

METRICS = "metrics"
"""The segment of the protected vector that is published in the clear."""


STREAM_SECONDS = 30.0
SLOWEST_BYTES_PER_SECOND = 100_000.0
"""A client on a line slower than this does not upload a masked vector in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCatalogue:
    """The catalogue file as it is served, and what it says about itself."""

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
        spec: the protected vector.
        protection: the public half of the protection.
    """

    plan: Plan
    plan_fingerprint: str
    catalogue: PublicCatalogue
    keys: KeyEpoch
    spec: VectorSpec
    protection: Protection

    @classmethod
    def of(
        cls, plan: Plan, catalogue: PublicCatalogue, spec: VectorSpec, keys: KeyEpoch
    ) -> Federation:
        """Put the parts together.

        Raises:
            SettingsError: when the vector has no public metrics segment.
            KeysError: when the keys were made for other settings, or the context holds a key.
        """
        if METRICS not in {segment.name for segment in spec.segments}:
            raise SettingsError(f"The protected vector has no segment named {METRICS!r}.")
        kind = PROTECTIONS[plan.protection.name]
        protection = kind(spec, kind.plan(spec, preset=plan.protection.preset))
        _check_keys(plan, protection, keys)
        return cls(
            plan=plan,
            plan_fingerprint=plan_fingerprint(plan),
            catalogue=catalogue,
            keys=keys,
            spec=spec,
            protection=protection,
        )

    def following(self, keys: KeyEpoch) -> Federation:
        """Return the federation in a later key epoch of the same authority.

        Raises:
            KeysError: when it is not later, of another authority or for other settings.
        """
        present, wanted = self.keys.roster, keys.roster
        if wanted.authority_key != present.authority_key:
            raise KeysError(
                f"It is signed by the authority {fingerprint(wanted.authority_key)[:16]}, epoch "
                f"{present.epoch} by {fingerprint(present.authority_key)[:16]}.",
                remedy="Members pinned one authority: use the folder in which its key is.",
            )
        if wanted.epoch <= present.epoch:
            raise KeysError(
                f"Epoch {wanted.epoch} is not above {present.epoch}, the newest one here.",
                remedy=f"Make one with `fedrec keys rotate --epoch {present.epoch + 1}`.",
            )
        _check_keys(self.plan, self.protection, keys)
        return replace(self, keys=keys)

    @property
    def roster(self) -> frozenset[ClientId]:
        """Return who belongs to the federation."""
        return frozenset(member.client_id for member in self.keys.roster.members)

    @property
    def identity(self) -> RunIdentity:
        """Return what a state folder is bound to."""
        return RunIdentity(
            federation=self.plan.federation.name,
            plan_fingerprint=self.plan_fingerprint,
            catalogue_fingerprint=self.catalogue.fingerprint,
            epoch=self.keys.roster.epoch,
        )

    def rules(self, run: str) -> Rules:
        """Return what the state machine has to know."""
        mechanism, revealer = mechanism_of(self.plan), self.keys.roster.revealer
        return Rules(
            run=run,
            epoch=self.keys.roster.epoch,
            seed=self.plan.federation.seed,
            needs_reveal=self.protection.needs_reveal,
            rounds=self.plan.rounds,
            fewest_revealed=self.keys.roster.minimum_summands,
            most_summands=self.protection.chosen.max_summands,
            first_seed=self.keys.roster.secrets_sha256,
            masked=self.protection.is_interactive,
            vector_seconds=STREAM_SECONDS
            + self.protection.chosen.message_bytes / SLOWEST_BYTES_PER_SECOND,
            most_sums=None if mechanism is None else mechanism.most_sums,
            budget="" if mechanism is None else mechanism.budget,
            charges_updates=mechanism is not None
            and mechanism.kind == "laplace"
            and not self.protection.is_interactive,
            revealer=None if revealer is None else revealer.client_id,
        )

    def info(self, run: str, client_id: ClientId, published: RoundId) -> FederationInfo:
        """Return what a client learns first."""
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
        """Return the length of a statement's metrics, 0 where they stay with the clients."""
        if not self.protection.chosen.releases_metrics:
            return 0
        return 8 * next(s.length for s in self.spec.segments if s.name == METRICS)

    def readable_metrics(self, total: bytes, n_summands: int) -> bytes:
        """Return the metrics of a sum that the coordinator reads, as little-endian int64."""
        protection, context = self.protection, self.keys.server_context
        if protection.is_interactive:
            # What masks were taken off is packed as it would be without any.
            protection = NoProtection(self.spec, NoProtection.plan(self.spec))
            context, _ = protection.generate()
        vector = protection.member(context, b"none").reveal(total, n_summands)
        for segment, values in self.spec.pieces(vector):
            if segment.name == METRICS:
                return values.astype("<i8").tobytes()
        raise SettingsError(f"The protected vector has no segment named {METRICS!r}.")


@lru_cache(maxsize=2)
def _written(roster: Roster) -> bytes:
    """Return a roster as JSON, made once for all members who enrol."""
    return roster.to_json()


def _check_keys(plan: Plan, protection: Protection, keys: KeyEpoch) -> None:
    roster = keys.roster
    problems = [
        f"{what} is {found}, the settings say {wanted}"
        for what, found, wanted in (
            ("federation", roster.federation, plan.federation.name),
            ("protection", roster.protection, plan.protection.name),
            ("key holder", roster.key_holder, plan.protection.key_holder),
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
            f"The key epoch was made for other settings: {'; '.join(problems)}.",
            remedy="Ask the key authority for a new epoch, or use the settings it was made for.",
        )
    protection.check_context(keys.server_context)
