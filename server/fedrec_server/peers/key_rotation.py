"""Newer key epochs: checked, stored, and begun between two rounds without a restart.

If the new epoch only adds members, a round in progress finishes in its own epoch. If it removes a
member, the round is abandoned at once, so that nothing is opened with that member any more. A
coordinator that is killed in between begins the newest stored epoch at its next start, and abandons
the round in progress with a reason.
"""

from __future__ import annotations

import json
from dataclasses import replace

from fedrec.errors import AuthorityIsOld, FedrecError, ProtocolError, StorageError
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.public import PublicIdentity
from fedrec.ids import RoundId
from fedrec.wire.chunks import Blob
from fedrec_server.federation import Federation
from fedrec_server.peers.remembered_updates import RememberedUpdates
from fedrec_server.rounds.changes import EpochBegan
from fedrec_server.rounds.events import EpochInstalled
from fedrec_server.rounds.machine import step
from fedrec_server.run.journal import log_entry
from fedrec_server.run.live_run import LiveRun
from fedrec_server.store.durable_files import epoch_name
from fedrec_server.store.store import Entry, EpochRecord, Store

MAX_EPOCH_BYTES = 64 << 20
"""Ten thousand members take about a tenth of it."""


def newest(federation: Federation, store: Store, now: float) -> Federation:
    """Return the federation in the newest epoch: that of the settings, or one installed since.

    Newer settings replace the installed epoch, so that only one bundle is kept.

    Args:
        now: the time, for the journal.

    Raises:
        KeysError: the two have different authorities, different settings, or the same number.
        DamagedFile: the stored bundle does not match its row.
    """
    record = store.installed_epoch()
    if record is None:
        return federation
    raw = store.spool.read(epoch_name(record.epoch, record.blob), record.blob)
    installed, given = KeyEpoch.from_json(raw), federation.keys
    if installed == given:
        return federation
    if installed.roster.epoch > given.roster.epoch:
        return federation.following(installed)
    following = replace(federation, keys=installed).following(given)
    keep_epoch(store, given, given.to_json(), now)
    return following


class KeyRotation:
    """Install epochs for a run.

    Attributes:
        next: the federation in the installed epoch that has not begun yet, or None.
    """

    def __init__(self, run: LiveRun, rollbacks: RememberedUpdates) -> None:
        self._run = run
        self._rollbacks = rollbacks
        self.next: Federation | None = None

    async def install(self, raw: bytes) -> tuple[int, bool]:
        """Make an epoch durable and begin it as soon as possible.

        Args:
            raw: the canonical JSON of a `KeyEpoch`.

        Returns:
            The epoch, and whether it has begun. Installing it again has no effect.

        Raises:
            ProtocolError: the epoch cannot follow the current one. The message has the reason.
            StorageError: the epoch cannot be made durable now. Nothing changed.
        """
        run = self._run
        try:
            keys = await run.work.beside(KeyEpoch.from_json, raw)
            began = await run.work.uninterrupted(self._install(keys, raw))
        except StorageError:
            raise
        except FedrecError as error:
            raise ProtocolError(
                f"The epoch was not installed: {error.message}", remedy=error.remedy
            ) from error
        run.failpoint("epoch.ack")
        return keys.roster.epoch, began

    async def _install(self, keys: KeyEpoch, raw: bytes) -> bool:
        run = self._run
        async with run.lock:
            latest = self.next or run.federation
            if keys != latest.keys:
                following = latest.following(keys)
                await self._replace_revealer(latest.keys.roster.revealer, keys.roster.revealer)
                now, published = run.clock.now(), run.state.published
                await run.work.in_thread(keep_epoch, run.store, keys, raw, now, published)
                self.next = following
                run.watchers.wake_all()
            await self.begin()
            began = self.next is None
        run.advance_soon()
        return began

    async def _replace_revealer(
        self, present: PublicIdentity | None, following: PublicIdentity | None
    ) -> None:
        """Record that a restored authority replaced an earlier one, which is final.

        Raises:
            AuthorityIsOld: the epoch is from a replaced authority.
        """
        run = self._run
        former = {one.client_id for one in self._rollbacks.former}
        if following is not None and following.client_id in former:
            raise AuthorityIsOld(
                "The epoch is from an authority's folder that was replaced by a restored one.",
                remedy="Run the restored authority. Keep the older folder, but never start it "
                "again.",
            )
        if present is not None and present != following:
            await run.work.in_thread(run.store.note_former, present)
            self._rollbacks.former = (*self._rollbacks.former, present)

    async def begin(self) -> bool:
        """Begin the next epoch unless a round must end first. The caller holds the lock."""
        if self.next is None:
            return False
        run, following = self._run, self.next
        event = EpochInstalled(
            now=run.clock.now(), rules=following.rules(run.name), roster=following.roster
        )
        state, changes = step(run.state, event)
        began = any(isinstance(change, EpochBegan) for change in changes)
        await run.commit(state, changes, federation=following if began else None)
        if began:
            self.next = None
        return began


def keep_epoch(
    store: Store, keys: KeyEpoch, raw: bytes, now: float, published: RoundId | None = None
) -> None:
    """Make an epoch durable in place of the previous one."""
    store.spool.require_space(len(raw))
    number = keys.roster.epoch
    record = EpochRecord(epoch=number, blob=Blob.of(raw))
    store.spool.write(epoch_name(number, record.blob), raw)
    fields = {"epoch": number, "members": len(keys.roster.members)}
    entry = Entry(
        unix_seconds=now,
        kind="key epoch installed",
        round=RoundId(0),
        fields_json=json.dumps(fields, sort_keys=True),
    )
    before = store.keep_epoch(record, [entry])
    log_entry(store.run, entry, published=published)
    # A stolen member's key could later open the wrapped secrets in an old bundle.
    if before is not None and before != record:
        store.spool.delete(epoch_name(before.epoch, before.blob))
