"""A federation in memory whose sums the key authority opens; a coordinator that can lie to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from client.support.fake_federation import FakeRound, World
from client.support.fake_parties import N_ITEMS
from client.support.key_watch import KeyWatch
from world.federation import change, keep
from world.keys import encryption_key_of

from fedrec.follower.patient_link import Stopped
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.identity.authority import AUTHORITY_FILE
from fedrec.identity.identity import Identity
from fedrec.identity.public import write_authority_key
from fedrec.ids import RoundId
from fedrec.plan.layout import METRICS_SLICE
from fedrec.wire.chunks import Blob
from fedrec.wire.messages import RevealStatement, manifest_digest
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER, Revealer


class AuthorityWorld(World):
    """The authority's revealer is under test, or the client that believes it."""

    more_protection: ClassVar[dict[str, str]] = {"key_holder": "authority"}

    @property
    def keys(self) -> AuthorityFolder:
        """The authority's folder."""
        return AuthorityFolder(self.folder / "keys")

    @property
    def revealer(self) -> Identity:
        """Who opens sums."""
        return change(self.keys, lambda keys: keys.revealer.load_or_create())

    @property
    def secret(self) -> bytes:
        """The secret key, which members do not have."""
        return self._secret

    def make_epoch(self, **changes: Any) -> Any:
        keys = self.keys
        if not (keys.private / AUTHORITY_FILE).exists():
            self.authority.save(keys.private)
            write_authority_key(
                keys.public_key_path, self.authority.public_key, self.authority.issuer.certificate
            )
            members = [member.public for member in (self.identity, *self.puppets)]
            keep(keys, keys.begin(self.plan, N_ITEMS).of_exactly(members, 1))
        epoch = changes.get("epoch", 1)
        change(keys, lambda keys: keys.revealer.keep(epoch, self._secret))
        alone = {
            "revealer": self.revealer.public,
            "protection_secret": encryption_key_of(self.largest, self._secret),
        }
        return super().make_epoch(**{**alone, **changes})

    def opens_sums(self, member: Identity) -> bool:
        return member.client_id == self.revealer.client_id

    def put_vector(self, round_: FakeRound, member: Identity, vector: Any) -> None:
        """Let a member contribute a vector as an honest one does."""
        known = self.membership(member)
        name = known.tag_name(round_.number, member.client_id, self.nonce_of(member))
        self.put(round_, member, self.round_vector(round_, member).member.protect(vector, name))

    def nonce_of(self, member: Identity) -> bytes:
        return member.public.signing_key[:16] if self.largest.chosen.n_tags else b""

    @property
    def opener(self) -> Identity:
        return self.revealer

    def words(self, round_: FakeRound) -> tuple[RevealStatement | None, bytes]:
        return self.state_of(round_)

    def state_of(self, round_: FakeRound) -> tuple[RevealStatement, bytes]:
        """Return what the authority says about a round, and the sealed sum."""
        known, vector = self.membership(self.revealer), self.round_vector(round_, self.revealer)
        aggregate = self.applied(round_)
        seal, rows = known.seal_of(round_.number), self.rows_after(round_.number)
        sealed = seal.seal_aggregate(vector.pack(aggregate))
        shared = self.shared[round_.number]
        statement = RevealStatement(
            federation="films",
            run=self.run,
            round=round_.number,
            epoch=known.epoch,
            client_id=known.client_id,
            manifest_digest=manifest_digest(known.run, round_.number, round_.headers),
            state_tag=seal.state_tag(shared.canonical_bytes()),
            published_digest=Blob.of(sealed).digest,
            metrics=aggregate[METRICS_SLICE].astype("<i8").tobytes(),
            n_rows=rows.n_rows,
            rows_digest=rows.digest,
            kind=round_.kind,
            trained=shared.trained,
            # Something was refused in between.
            sequence=2 * round_.number,
        )
        return known.sign_statement(statement), sealed

    def run_revealer(self, *tasks: Callable[[], Any], new_run: bool = False) -> Revealer:
        """Give the revealer these tasks, and end it when it asks for another one."""
        self.link.script.extend(tasks)
        hook = self.link.before

        def end(name: str) -> None:
            hook(name)
            waits = [event.detail for event in self.events if event.name == "revealer waits"]
            assert self.link.calls.count("federation") < 50, waits
            if name == "next_task" and not self.link.script:
                raise Stopped

        self.link.before = end
        revealer = Revealer(
            self.keys,
            self.link,
            self.events.append,
            new_run=new_run,
            clock=self.clock,
            sleep=self.clock.advance,
            jitter=lambda: 1.0,
        )
        try:
            revealer.start()
            revealer.wait(120.0)
        finally:
            self.link.before = hook
            revealer.close()
        return revealer

    def refusals(self) -> str:
        """Return the revealer's audit log."""
        path = self.keys.revealer.folder / STATE_FOLDER / AUDIT_FILE
        return path.read_text() if path.exists() else ""

    def honest_round(self, number: int = 1, kind: str = "train") -> FakeRound:
        """Open a round to which all puppets contribute."""
        round_ = self.open(RoundId(number), kind)
        self.contribute(round_)
        return round_


def refused(world: AuthorityWorld, key: KeyWatch, *words: str) -> None:
    """Check that nothing was opened, and that the audit log says why."""
    assert world.link.reveals == []
    assert key.opened == []
    assert world.link.declined, "the coordinator would wait for ever"
    assert "reveal refused" in world.event_names()
    assert '"event":"reveal_refused"' in world.refusals()
    for word in words:
        assert word in world.refusals()
