"""What a coordinator knows before anybody calls: its settings, its keys' public half, its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedrec.audit.wire.reading import PlainReader
from fedrec.config.plan import plan_to_json
from fedrec.config.schema import CoordinatorSettings, Plan, Settings
from fedrec.data.catalogue import Catalogue
from fedrec.errors import FedrecError, SettingsError
from fedrec.identity.epoch import KeyEpoch
from fedrec.ids import ClientId
from fedrec.protection import Protection
from fedrec.training.layout import protection_of

__all__ = ["Known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The coordinator's side of an audit.

    Attributes:
        state: its folder.
        item_ids: of the catalogue, in its order.
        public: what everybody may have, byte for byte: plan, roster and catalogue.
        members: the roster's fingerprints.
        reader: tries to read vectors of this plan.
    """

    plan: Plan
    state: Path
    protection: Protection
    context: bytes
    item_ids: tuple[str, ...]
    public: frozenset[bytes]
    members: frozenset[ClientId]
    reader: PlainReader

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read what a coordinator of these settings has.

        Raises:
            SettingsError: when the settings name no catalogue.
            KeysError: when the key epoch cannot be read.
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
        return cls(
            plan=settings.plan,
            state=Path(settings.coordinator.state),
            protection=protection,
            context=keys.server_context,
            item_ids=tuple(str(item) for item in catalogue.item_ids),
            public=frozenset(
                (plan_to_json(settings.plan), keys.roster.to_json(), path.read_bytes())
            ),
            members=frozenset(member.client_id for member in keys.roster.members),
            reader=PlainReader(protection.spec),
        )

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


def _key_epoch(settings: CoordinatorSettings) -> KeyEpoch:
    """Return the epoch of the settings' file; where it was deleted, the newest installed one."""
    path = Path(settings.epoch)
    installed = sorted(Path(settings.state).glob("epochs/*"))
    return KeyEpoch.load(path if path.exists() or not installed else installed[-1])
