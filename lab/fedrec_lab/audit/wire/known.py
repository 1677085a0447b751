"""The coordinator's knowledge before any call: settings, files, signed rosters of key epochs.

An audit opens nothing, so it needs no secrets of epochs. Those of earlier epochs are destroyed
anyway. It needs each epoch's members and context, which the signed roster gives. A coordinator
keeps only the newest bundle, a recording has those that passed, and the authority's folder has the
roster of every epoch that it made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from fedrec.data.catalogue import Catalogue
from fedrec.errors import DataError, FedrecError, KeysError, SettingsError
from fedrec.identity.authority import AUTHORITY_FOLDER, EPOCH_FILE, ROSTERS_FOLDER
from fedrec.identity.document import read_public
from fedrec.identity.epoch import MAX_BYTES, KeyEpoch
from fedrec.identity.roster import Roster
from fedrec.ids import ClientId
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.layout import protection_of
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ROW_STEP, padded_rows
from fedrec.protection import NoProtection, Protection, VectorSpec
from fedrec.settings.schema import CoordinatorSettings, Settings
from fedrec.training.round_vectors import RoundVectors
from fedrec_lab.audit.wire.declared import file_kind
from fedrec_lab.audit.wire.reading import PlainReader

RosterSource = Literal["coordinator", "given", "recorded", "not given"]
"""The source of an epoch's roster. A recorded one counts because the authority signed it."""

_REMEDY = "Pass the rosters of this federation's authority: its folder keys/authority/rosters."


@dataclass(slots=True)
class EpochTally:
    """The traffic that names one key epoch.

    Attributes:
        messages: the number of messages that name it.
        outsiders: the number of them whose signer is not in its roster.
        updates, readable_updates, readable_values: uploads for its rounds.
    """

    messages: int = 0
    outsiders: int = 0
    updates: int = 0
    readable_updates: int = 0
    readable_values: int = 0


class KnownEpochs:
    """Rosters of one authority, by epoch. Reading a recording may add to them.

    Args:
        keys: the epoch of the coordinator's settings, whose authority is trusted.
    """

    def __init__(self, keys: KeyEpoch) -> None:
        self._federation = keys.roster.federation
        self._authority_key = keys.roster.authority_key
        self._rosters: dict[int, Roster] = {}
        self._sources: dict[int, RosterSource] = {}
        self.add(keys.roster, "coordinator")

    def __iter__(self) -> Iterator[int]:
        """Yield the known epochs with a roster in ascending order."""
        return iter(sorted(self._rosters))

    def add(self, roster: Roster, source: RosterSource) -> None:
        """Add a roster. If it is already here, nothing changes.

        Raises:
            BadSignature: if the roster has no signature, or one from a different authority.
            KeysError: if the roster is from a different federation, or differs from the known one.
        """
        roster.verify(self._authority_key)
        if roster.federation != self._federation:
            raise KeysError(
                f"The roster is for the federation {roster.federation!r}, expected "
                f"{self._federation!r}.",
                remedy=_REMEDY,
            )
        if self._rosters.setdefault(roster.epoch, roster) != roster:
            raise KeysError(
                f"There are two different rosters of key epoch {roster.epoch}.",
                remedy="Ask the data owners which one they made. An authority restored from a "
                "backup may have used a number again.",
            )
        self._sources.setdefault(roster.epoch, source)

    def add_folder(self, state: Path) -> None:
        """Add the bundles in a coordinator's folder.

        Raises:
            KeysError, BadSignature: if a bundle cannot be used.
        """
        for path in sorted(state.glob("epochs/*")):
            if file_kind(path.relative_to(state).as_posix()) != "epoch bundle":
                continue
            # A running coordinator deletes the bundle before the newest.
            with suppress(FileNotFoundError):
                self.add(KeyEpoch.from_json(path.read_bytes()).roster, "coordinator")

    def add_given(self, places: Sequence[Path]) -> None:
        """Add rosters and bundles from files, or from folders such as the authority's folder.

        Raises:
            DataError: if a folder has neither rosters nor bundles.
            KeysError, BadSignature: if a roster or bundle cannot be used here.
        """
        for place in places:
            for path in _files(place):
                raw = read_public(path, max_bytes=MAX_BYTES, remedy=_REMEDY)
                try:
                    self.add(_roster(raw), "given")
                except FedrecError as error:
                    raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from None

    def learn(self, bundle: bytes) -> str:
        """Add a recorded bundle.

        Return why it does not belong to this federation, or an empty string.
        """
        try:
            self.add(KeyEpoch.from_json(bundle).roster, "recorded")
        except FedrecError as error:
            return error.message
        return ""

    def roster_problem(self, epoch: int, raw: bytes) -> str:
        """Return why a recorded roster is not that of the stated epoch, or an empty string.

        The roster of an unknown epoch counts if the authority signed it.
        """
        known = self._rosters.get(epoch)
        if known is not None:
            same = known.to_json() == raw
            return "" if same else f"is not that of key epoch {epoch}, byte for byte"
        try:
            roster = Roster.from_json(raw)
            if roster.epoch != epoch:
                return f"is of key epoch {roster.epoch}, the message names {epoch}"
            self.add(roster, "recorded")
        except FedrecError as error:
            return f"is not signed by the authority: {error.message}"
        return ""

    def context_problem(self, epoch: int, context: bytes) -> str:
        """Return why a context is not that of an epoch, or an empty string if it may be."""
        known = self._rosters.get(epoch)
        if known is None or hashlib.sha256(context).digest() == known.context_sha256:
            return ""
        return f"is not the one in the roster of key epoch {epoch}"

    def lists(self, epoch: int, client_id: str) -> bool:
        """Return whether a client was a member or revealer. Without a roster, all count."""
        known = self._rosters.get(epoch)
        if known is None or known.contains(ClientId(client_id)):
            return True
        return known.revealer is not None and known.revealer.client_id == client_id

    def n_members(self, epoch: int) -> int:
        """Return the number of members of an epoch, or 0 if its roster is unknown."""
        known = self._rosters.get(epoch)
        return 0 if known is None else len(known.members)

    def source(self, epoch: int) -> RosterSource:
        """Return the source of an epoch's roster."""
        return self._sources.get(epoch, "not given")


def _files(place: Path) -> Iterable[Path]:
    """Return the files of rosters and bundles at a given place."""
    if not place.is_dir():
        return (place,)
    found = [
        *place.glob(EPOCH_FILE),
        *place.glob(f"{AUTHORITY_FOLDER}/{ROSTERS_FOLDER}/*.json"),
        *place.glob(f"{ROSTERS_FOLDER}/*.json"),
        *place.glob("[0-9]*.json"),
    ]
    if not found:
        raise DataError(
            f"{place} has no roster of a key epoch.",
            remedy=f"Pass the authority's folder, its {ROSTERS_FOLDER} or a file of an epoch.",
        )
    return sorted(found)


def _roster(raw: bytes) -> Roster:
    """Return the roster of a file, which may be a whole bundle."""
    try:
        return Roster.from_json(raw)
    except KeysError:
        return KeyEpoch.from_json(raw).roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The coordinator's side of an audit.

    Attributes:
        state: its state folder.
        item_ids: the catalogue's item ids, in its order.
        vectors: the vector of each kind of round.
        context: the context of the settings' key epoch.
        public: the public bytes: plan and catalogue.
        epochs: the known rosters.
        reader: tries to read vectors of this plan.
        planned: the lengths that an update may have, for training rounds one for each number of
            rows.
        counting: the lengths that a count round's update and sum may have.
    """

    plan: Plan
    state: Path
    protection: Protection
    vectors: RoundVectors
    context: bytes
    item_ids: tuple[str, ...]
    public: frozenset[bytes]
    epochs: KnownEpochs
    reader: PlainReader
    planned: frozenset[int]
    counting: frozenset[int]

    @classmethod
    def of(cls, settings: Settings, given: Sequence[Path] = ()) -> Self:
        """Read the public knowledge of a coordinator with these settings.

        Args:
            given: files and folders with rosters of further key epochs.

        Raises:
            SettingsError: if the settings name no catalogue.
            DataError: if a given folder has no roster.
            KeysError: if a key epoch cannot be read.
            BadSignature: if a roster is from a different authority.
        """
        if settings.data.catalogue is None:
            raise SettingsError(
                "data.catalogue is missing. An audit of the wire needs the coordinator's settings.",
                remedy="Pass the file with which `fedrec coordinator run` was started.",
            )
        path = Path(settings.data.catalogue)
        catalogue = Catalogue.load(path)
        keys = _key_epoch(settings.coordinator)
        protection = protection_of(settings.plan, len(catalogue))
        vectors = RoundVectors.of(settings.plan, len(catalogue))
        specs = (vectors.counting, *_possible(vectors))
        state = Path(settings.coordinator.state)
        epochs = KnownEpochs(keys)
        epochs.add_folder(state)
        epochs.add_given(given)
        return cls(
            plan=settings.plan,
            state=state,
            protection=protection,
            vectors=vectors,
            context=keys.server_context,
            item_ids=tuple(str(item) for item in catalogue.item_ids),
            public=frozenset((plan_to_json(settings.plan), path.read_bytes())),
            epochs=epochs,
            reader=PlainReader(*specs),
            planned=frozenset(protection.over(spec).chosen.message_bytes for spec in specs),
            counting=frozenset(
                (
                    protection.over(vectors.counting).chosen.message_bytes,
                    NoProtection.plan(vectors.counting).message_bytes,
                )
            ),
        )

    def planned_for(self, kind: str, n_rows: int) -> frozenset[int]:
        """Return the lengths of an update with this header, or all if the header does not tell."""
        if kind == "count":
            return self.counting
        if kind not in ("train", "evaluate"):
            return self.planned
        try:
            spec = self.vectors.trained(n_rows)
            return frozenset((self.protection.over(spec).chosen.message_bytes,))
        except SettingsError:
            return frozenset()

    def hides(self, what: str) -> bool:
        """Return whether the plan promises that bytes look random. See `Kind.sealed`."""
        return {
            "never": False,
            "always": True,
            "updates": self.plan.protection.name != "none",
            "sums": self.protection.needs_reveal,
        }[what]

    def context_problem(self, context: bytes) -> str:
        """Return the problem of a context, or an empty string if it has no key."""
        try:
            self.protection.envelope(context)
        except FedrecError as error:
            return error.message
        return ""


def _possible(vectors: RoundVectors) -> Iterator[VectorSpec]:
    """Yield the training vector for each number of rows that may travel."""
    numbers = range(ROW_STEP, padded_rows(vectors.n_items) + 1, ROW_STEP)
    for n_rows in numbers if vectors.least else (vectors.n_items,):
        try:
            yield vectors.trained(n_rows)
        except SettingsError:
            return


def _key_epoch(settings: CoordinatorSettings) -> KeyEpoch:
    """Return the epoch of the settings' file or, if it was deleted, the newest installed one."""
    path = Path(settings.epoch)
    installed = sorted(Path(settings.state).glob("epochs/*"))
    return KeyEpoch.load(path if path.exists() or not installed else installed[-1])
