"""A client's view of its federation after enrolment, and the checks of signed messages in it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace

from fedrec.data import Catalogue
from fedrec.errors import (
    CatalogueMismatch,
    MalformedUpdate,
    PlanMismatch,
    RefusedError,
    VersionMismatch,
)
from fedrec.follower.round_terms import AnnouncedRound, RoundSeal, RoundVector
from fedrec.follower.statements import About, check_follows, check_reports, check_statement
from fedrec.identity.cells import check_whole
from fedrec.identity.epoch_secrets import EpochSecrets
from fedrec.identity.identity import Identity
from fedrec.identity.public import verify
from fedrec.identity.roster import Roster
from fedrec.identity.sealing import KEY_BYTES, derive, keyed_tag
from fedrec.ids import ClientId, RoundId, canonical, digest
from fedrec.model.state import SharedState
from fedrec.plan.layout import Layout
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ActiveRows, fewest_cells
from fedrec.protection import Member, Protection
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import DIGEST_BYTES, StatedRows
from fedrec.wire.messages import (
    PROTOCOL_VERSION,
    Report,
    RevealStatement,
    RoundKind,
    UploadHeader,
)


def check_protocol(version: str) -> None:
    """Refuse a peer with another major protocol version.

    Raises:
        VersionMismatch: the versions differ. The error names both.
    """
    if version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise VersionMismatch(
            f"The peer speaks protocol {version!r}, but this fedrec speaks {PROTOCOL_VERSION}.",
            remedy="Install the same release of fedrec on both sides.",
        )


def tag_key_of(secrets: EpochSecrets, federation: str, epoch: int) -> bytes:
    """Return the key of an epoch's sum tags. Members have it, and the coordinator doesn't."""
    info = canonical("fedrec sum tag key v1", federation, epoch)
    return derive(secrets.group_key, salt=b"", info=info, length=KEY_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One client's membership in one run and key epoch. Every part was checked.

    Attributes:
        run: the run's id.
        plan_fingerprint: identifies the plan in every signature.
        context: the protection's context, without a secret key.
        protection: the protection of the largest vector. `vector_of` makes it one for a round's
            vector.
        half: has the key that protects vectors, and opens sums if this client has that right. None
            if the clients of a round make messages together.
        layout: the layout of a round of all items, for values that every round shares.
    """

    identity: Identity
    run: str
    plan: Plan
    plan_fingerprint: str
    catalogue: Catalogue
    catalogue_fingerprint: str
    roster: Roster
    secrets: EpochSecrets
    context: bytes
    protection: Protection
    half: Member | None
    layout: Layout
    _vectors: dict[tuple[bool, int], RoundVector] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def client_id(self) -> ClientId:
        """The id of this client in the roster."""
        return self.identity.client_id

    @property
    def federation(self) -> str:
        """The name of the federation."""
        return self.plan.federation.name

    @property
    def epoch(self) -> int:
        """The key epoch of this membership."""
        return self.roster.epoch

    @property
    def revealer_id(self) -> ClientId | None:
        """The only party that opens sums, or None if each member decrypts published sums."""
        return None if self.roster.revealer is None else self.roster.revealer.client_id

    @property
    def is_revealer(self) -> bool:
        """Whether this party is the key authority's revealer, which doesn't train."""
        return self.revealer_id == self.client_id

    @property
    def is_encrypted(self) -> bool:
        """Whether the rounds' sums are hidden from the coordinator."""
        return self.protection.needs_reveal

    @property
    def shares_key(self) -> bool:
        """Whether each member decrypts the published sum, as in the papers' protocol."""
        return self.is_encrypted and self.roster.revealer is None

    @property
    def minimum_summands(self) -> int:
        """The minimum number of distinct clients in a sum that may be opened or trusted.

        The plan's minima apply too, because this client agreed to them when it enrolled.
        """
        return self.plan.rounds.fewest_summands(
            self.protection.hides_updates, self.roster.minimum_summands
        )

    def seal_of(self, round_id: RoundId) -> RoundSeal:
        """Return the object that seals and tags the results of a round."""
        return RoundSeal(
            group_key=self.secrets.group_key,
            federation=self.federation,
            run=self.run,
            epoch=self.epoch,
            round=round_id,
        )

    def vector_of(self, kind: RoundKind, n_rows: int) -> RoundVector:
        """Return the objects for a round's vector, made once for each length.

        Args:
            n_rows: the number of item rows that the round covers.

        Raises:
            SettingsError: training isn't possible with this number of rows.
        """
        key = (kind == "count", n_rows)
        if key not in self._vectors:
            layout = Layout.of_round(self.plan, kind, n_rows, len(self.catalogue))
            protection = self.protection.over(layout.vector_spec)
            self._vectors[key] = RoundVector(
                layout=layout,
                protection=protection,
                half=None if self.half is None else self.half.over(protection),
                context=self.context,
            )
        return self._vectors[key]

    def stated_rows(self, rows: ActiveRows) -> StatedRows:
        """Return the item rows that vectors cover, as members state them in reports.

        The digest of the list is keyed if the coordinator must not be able to confirm a guess.
        """
        if rows.is_whole or not self.is_encrypted:
            return rows.stated(self.federation, self.run)
        named = canonical("fedrec rows v1", self.federation, self.run, self.epoch, rows.content())
        tag = keyed_tag(self.secrets.group_key, "fedrec rows v1", named)
        return StatedRows(n_rows=rows.n_rows, digest=tag)

    def close(self) -> None:
        """Delete the key. Afterwards, nothing can be protected or opened."""
        vectors = self._vectors.values()
        for half in (*(vector.half for vector in vectors), self.half):
            if half is not None:
                half.close()

    def base_state(self, version: RoundId, shared: SharedState) -> bytes:
        """Return the digest that contributors use to name the model that they start from.

        It is keyed if the coordinator must not know the model or be able to confirm a guess.
        """
        content = shared.canonical_bytes()
        if self.is_encrypted:
            return self.seal_of(version).state_tag(content)
        return digest("fedrec base state v1", self.federation, self.run, version, content)

    @property
    def is_tagged(self) -> bool:
        """Whether sums of more than `rounds.recompute_limit` updates are opened by their tags."""
        return self.protection.chosen.n_tags > 0

    def tag_name(self, round_id: RoundId, client_id: ClientId, nonce: bytes) -> bytes:
        """Return the name under which an update is tagged.

        Only the revealer and the update's author know it. A member that copies another's ciphertext
        would have to remove that author's pad. It can't, although it knows the key that members
        share. Without a revealer, nothing is tagged.
        """
        name = canonical("fedrec tag name v1", self.run, self.epoch, round_id, client_id, nonce)
        revealer = self.roster.revealer
        if revealer is None:
            return name
        other = self.roster.member(client_id) if self.is_revealer else revealer
        shared = self.identity.agree(other.exchange_key)
        info = canonical("fedrec tag name secret v1", self.federation, self.epoch, client_id)
        key = derive(shared, salt=b"", info=info, length=KEY_BYTES)
        return hmac.new(key, name, hashlib.sha256).digest()

    def tag_names(
        self, round_id: RoundId, contributions: tuple[UploadHeader, ...]
    ) -> tuple[bytes, ...]:
        """Return the names of the updates that a sum must contain."""
        return tuple(
            self.tag_name(round_id, header.client_id, header.nonce) for header in contributions
        )

    def header_for(self, terms: AnnouncedRound, payload: bytes, nonce: bytes) -> UploadHeader:
        """Return the signed header of this client's update of a round."""
        unsigned = UploadHeader(
            protocol_version=PROTOCOL_VERSION,
            federation=self.federation,
            run=self.run,
            round=terms.round,
            kind=terms.kind,
            base_round=terms.base_round,
            base_state=terms.base_state,
            key_list=terms.key_list,
            nonce=nonce,
            epoch=self.epoch,
            client_id=self.client_id,
            catalogue_fingerprint=self.catalogue_fingerprint,
            plan_fingerprint=self.plan_fingerprint,
            length=len(payload),
            digest=Blob.of(payload).digest,
            n_rows=terms.rows.n_rows,
            rows_digest=terms.rows.digest,
        )
        return replace(unsigned, signature=self.identity.sign(unsigned.statement()))

    def sign_statement(self, statement: RevealStatement) -> RevealStatement:
        """Return the statement with the revealer's signature."""
        return replace(statement, signature=self.identity.sign(statement.statement()))

    def report_on(
        self, round_id: RoundId, shared: SharedState, rows: StatedRows, metrics: bytes = b""
    ) -> Report:
        """Return this client's signed report on its model after a round.

        Args:
            rows: the item rows that vectors cover from now on.
            metrics: the round's metrics, or empty after a snapshot.
        """
        report = Report(
            federation=self.federation,
            run=self.run,
            round=round_id,
            epoch=self.epoch,
            client_id=self.client_id,
            state_tag=self.seal_of(round_id).state_tag(shared.canonical_bytes()),
            metrics=metrics,
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
        )
        return replace(report, signature=self.identity.sign(report.statement()))

    def check_contributions(
        self, terms: AnnouncedRound, contributions: tuple[UploadHeader, ...]
    ) -> None:
        """Check that a round's contributions are enough signed updates from distinct members.

        All of them must be for the same kind of round from the same model. If one client measured
        while the others trained, the sum would expose its metrics.

        Raises:
            RefusedError: there are too few or too many, one client appears twice, or one belongs to
                a different round, run, epoch, kind or model.
            PartialCell: some members of a cell's core are missing.
            NotInRoster: an author isn't a member.
            BadSignature: the author didn't sign one.
            ProtocolError: a contribution has a different catalogue, plan or length.
        """
        found = len(contributions)
        if found < self.minimum_summands:
            raise RefusedError(
                f"Round {terms.round} has {found} contributions, but needs at least "
                f"{self.minimum_summands}."
            )
        most = self.protection.chosen.max_summands
        if self.is_encrypted and found > most:
            raise RefusedError(
                f"Round {terms.round} has {found} contributions, but at most {most} are allowed "
                "(rounds.recompute_limit)."
            )
        if len({header.client_id for header in contributions}) < found:
            raise RefusedError(f"Round {terms.round} lists a client twice.")
        if self.protection.steps.are_several:
            terms = replace(terms, key_list=_agreement_of(contributions))
        for header in contributions:
            self._check_header(terms, header)
        check_whole(
            self.roster.partition,
            [header.client_id for header in contributions],
            least=self.minimum_summands,
            least_cells=fewest_cells(self.plan, self.roster.partition),
            what=f"The sum of round {terms.round}",
        )

    def _check_header(self, terms: AnnouncedRound, header: UploadHeader) -> None:
        check_protocol(header.protocol_version)
        member = self.roster.member(header.client_id)
        author = header.client_id[:16]
        if header.catalogue_fingerprint != self.catalogue_fingerprint:
            raise CatalogueMismatch(f"{author} contributed with a different catalogue.")
        if header.plan_fingerprint != self.plan_fingerprint:
            raise PlanMismatch(f"{author} contributed under a different plan.")
        about = (header.federation, header.run, header.round, header.epoch)
        if about != (self.federation, self.run, terms.round, self.epoch):
            raise RefusedError(
                f"{author}'s contribution has (federation, run, round, epoch) = {about}, but "
                f"{(self.federation, self.run, terms.round, self.epoch)} was expected.",
                remedy="A contribution was replayed. Tell the data owners.",
            )
        terms.check_header(header)
        if bool(header.nonce) != self.is_tagged:
            raise MalformedUpdate(
                f"{author}'s update has a nonce of {len(header.nonce)} bytes, expected "
                f"{16 if self.is_tagged else 0}."
            )
        expected = self.vector_of(terms.kind, terms.rows.n_rows).message_bytes
        if header.length != expected:
            raise MalformedUpdate(f"{author} announces {header.length} bytes, expected {expected}.")
        verify(member.signing_key, header.statement(), header.signature)

    def check_statement(
        self,
        round_id: RoundId,
        statement: RevealStatement | None,
        known: RevealStatement | None = None,
    ) -> None:
        """Check the key authority's statement that it opened a round (see `statements`).

        Args:
            known: its last known statement.
        """
        check_statement(statement, roster=self.roster, about=self._about(round_id))
        if statement is not None:
            check_follows(statement, known)

    def check_paused(
        self, statement: RevealStatement | None, contributions: tuple[UploadHeader, ...]
    ) -> None:
        """Check that a published sum contains no cell that its statement pauses.

        Raises:
            RefusedError: the roster doesn't have these cells, or the sum contains some of their
                members.
        """
        if statement is None or not statement.paused:
            return
        partition, paused = self.roster.partition, statement.paused
        members = partition.members_of(paused)
        if not {cell.id for cell in partition.in_use}.issuperset(paused):
            raise RefusedError(
                f"The key authority's statement on round {statement.round} pauses cells that the "
                "roster doesn't have."
            )
        if not members.isdisjoint(header.client_id for header in contributions):
            raise RefusedError(
                f"The sum of round {statement.round} contains clients of paused cells."
            )

    def paused_by(self, statement: RevealStatement | None = None) -> int:
        """Return the number of this client's cell if it is paused, else 0.

        Args:
            statement: the key authority's last statement. One of another epoch doesn't count.
        """
        cell = self.roster.partition.cell_of(self.client_id)
        if cell is None:
            return 0
        is_current = statement is not None and statement.epoch == self.epoch
        named = is_current and statement is not None and cell.id in statement.paused
        return cell.id if named or cell.state == "paused" else 0

    def check_reports(self, round_id: RoundId, reports: tuple[Report, ...]) -> Report:
        """Check that members have the same model after a round (see `statements`)."""
        return check_reports(reports, roster=self.roster, about=self._about(round_id))

    def _about(self, round_id: RoundId) -> About:
        return self.federation, self.run, round_id, self.epoch


def _agreement_of(contributions: tuple[UploadHeader, ...]) -> bytes:
    """Return the agreement that all contributions name, made before the vectors."""
    found = contributions[0].key_list
    if len(found) != DIGEST_BYTES:
        raise RefusedError(
            "A contribution to a round of several steps doesn't name what its clients agreed on."
        )
    return found
