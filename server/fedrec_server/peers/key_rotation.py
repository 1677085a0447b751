"""Newer key epochs: checked, durable, and begun between two rounds without a restart.

A round in progress is finished in its epoch when the new one only adds members. When it removes
somebody the round is abandoned at once, so that nothing is opened with that member any more. A
coordinator that is killed in between begins the newest durable epoch when it comes back; the round
that was in progress is abandoned and says why.
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

    Newer settings take the place of what was installed, so that one bundle is kept.

    Args:
        now: the time, for the journal.

    Raises:
        KeysError: when the two are of different authorities, of other settings, or two epochs of
            one number.
        DamagedFile: when the stored bundle is not what its row says.
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
    """Takes in epochs for a run.

    Attributes:
        next: the federation in the installed epoch that has not begun yet, or None.
    """

    def __init__(self, run: LiveRun, rollbacks: RememberedUpdates) -> None:
        self._run = run
        self._rollbacks = rollbacks
        self.next: Federation | None = None

    async def install(self, raw: bytes) -> tuple[int, bool]:
        """Make an epoch durable and begin it as soon as may be.

        Args:
            raw: the canonical JSON of a `KeyEpoch`.

        Returns:
            The epoch, and whether it has begun. The same one may be handed in again.

        Raises:
            ProtocolError: with the reason why the epoch is not one to go on with.
            StorageError: it cannot be made durable now; nothing changed.
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
        """Note that a restored authority took an earlier one's place, which is final.

        Raises:
            AuthorityIsOld: the epoch is of an authority that was replaced.
        """
        run = self._run
        former = {one.client_id for one in self._rollbacks.former}
        if following is not None and following.client_id in former:
            raise AuthorityIsOld(
                "The epoch is of an authority's folder that a restored one took the place of.",
                remedy="Run the restored one. Keep the older folder, and start it no more.",
            )
        if present is not None and present != following:
            await run.work.in_thread(run.store.note_former, present)
            self._rollbacks.former = (*self._rollbacks.former, present)

    async def begin(self) -> bool:
        """Begin the next epoch unless a round has to end first; the caller holds the lock."""
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
    """Make an epoch durable in place of the one before."""
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
    # The holder of an old bundle can open it with a member's key that is stolen later.
    if before is not None and before != record:
        store.spool.delete(epoch_name(before.epoch, before.blob))
