"""What a coordinator knows before anybody calls: its settings, its keys' public half, its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedrec.data.catalogue import Catalogue
from fedrec.errors import FedrecError, SettingsError
from fedrec.identity.epoch import KeyEpoch
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.layout import protection_of
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import ROW_STEP, padded_rows
from fedrec.protection import NoProtection, Protection, VectorSpec
from fedrec.settings.schema import CoordinatorSettings, Settings
from fedrec.training.round_vectors import RoundVectors
from fedrec_lab.audit.wire.epochs import KnownEpochs
from fedrec_lab.audit.wire.reading import PlainReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The coordinator's side of an audit.

    Attributes:
        state: its folder.
        item_ids: of the catalogue, in its order.
        vectors: how long each round's vector is.
        context: of the key epoch that the settings name.
        public: what everybody may have, byte for byte: plan and catalogue.
        epochs: the rosters that are here.
        reader: tries to read vectors of this plan.
        planned: the lengths that an update may have; of rounds that train one for each number of
            rows.
        counting: the lengths that a count round's update and its sum may have.
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
        """Read what a coordinator of these settings has.

        Args:
            given: files and folders with rosters of further key epochs.

        Raises:
            SettingsError: when the settings name no catalogue.
            DataError: when a folder that was given holds no roster.
            KeysError: when a key epoch cannot be read.
            BadSignature: when a roster is of another authority.
        """
        if settings.data.catalogue is None:
            raise SettingsError(
                "data.catalogue is missing; an audit of the wire needs the coordinator's settings.",
                remedy="Name the file with which `fedrec coordinator run` was started.",
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
            planned=frozenset(protection.plan_over(spec).message_bytes for spec in specs),
            counting=frozenset(
                (
                    protection.plan_over(vectors.counting).message_bytes,
                    NoProtection.plan(vectors.counting).message_bytes,
                )
            ),
        )

    def planned_for(self, kind: str, n_rows: int) -> frozenset[int]:
        """Return the lengths of an update whose header says this; all where it says nothing."""
        if kind == "count":
            return self.counting
        if kind not in ("train", "evaluate"):
            return self.planned
        try:
            spec = self.vectors.trained(n_rows)
            return frozenset((self.protection.plan_over(spec).message_bytes,))
        except SettingsError:
            return frozenset()

    def hides(self, what: str) -> bool:
        """Tell whether the plan promises that bytes look random: `Kind.sealed`."""
        return {
            "never": False,
            "always": True,
            "updates": self.plan.protection.name != "none",
            "sums": self.protection.needs_reveal,
        }[what]

    def context_problem(self, context: bytes) -> str:
        """Return what is wrong with a context that was found; empty where it holds no key."""
        try:
            self.protection.check_context(context)
        except FedrecError as error:
            return error.message
        return ""


def _possible(vectors: RoundVectors) -> Iterator[VectorSpec]:
    """Yield the vector of rounds that train for each number of rows that may travel."""
    numbers = range(ROW_STEP, padded_rows(vectors.n_items) + 1, ROW_STEP)
    for n_rows in numbers if vectors.least else (vectors.n_items,):
        try:
            yield vectors.trained(n_rows)
        except SettingsError:
            return


def _key_epoch(settings: CoordinatorSettings) -> KeyEpoch:
    """Return the epoch of the settings' file; where it was deleted, the newest installed one."""
    path = Path(settings.epoch)
    installed = sorted(Path(settings.state).glob("epochs/*"))
    return KeyEpoch.load(path if path.exists() or not installed else installed[-1])
