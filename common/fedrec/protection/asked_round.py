"""A round as the settings ask for it, and what a protection says of it before any run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.settings import ProtectionSettings
from fedrec.protection.vector import VectorSpec

DECRYPTION_SECONDS = 0.03
"""Of one Paillier ciphertext, with room for a machine that does other things as well."""
MULTIPLICATION_SECONDS = 0.0001
FETCHED_BYTES_PER_SECOND = 100_000.0


def opening_seconds(plan: ProtectionPlan, n_summands: int, *, adds_up: bool) -> float:
    """Return what a key holder takes to fetch and open a sum of so many messages.

    Args:
        adds_up: whether it fetches the messages and adds them up itself, or the sum.
    """
    n_blocks = plan.expected_blocks(n_summands)
    fetched, seconds = plan.sum_bytes(n_blocks), DECRYPTION_SECONDS * n_blocks
    if adds_up:
        fetched = n_summands * plan.message_bytes
        seconds += MULTIPLICATION_SECONDS * n_summands * plan.n_blocks
    return seconds + fetched / FETCHED_BYTES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRound:
    """What a protection has to know of a round to price it, or to warn of it.

    Attributes:
        n_clients: of the round, as assumed.
        minimum_clients: with fewer no round is published (`rounds.minimum_clients`).
        minimum_summands: a sum has at least so many (`rounds.minimum_summands`).
        settings: of the protection's `settings_type`.
        maximum_users: users of one sum (`federation.maximum_users`).
        fraction_bits: of a value's grid (`update.fraction_bits`).
        changes: returns one item row's change for other numbers of these two; raises
            `SettingsError` where no vector has them.
    """

    n_clients: int
    minimum_clients: int
    minimum_summands: int
    settings: ProtectionSettings
    maximum_users: int
    fraction_bits: int
    changes: Callable[[int, int], VectorSpec]

    @property
    def needed(self) -> int:
        """The fewest clients of a sum."""
        return max(self.minimum_clients, self.minimum_summands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What something takes, said before it starts: a whole run, or a part of one.

    Attributes:
        name: what is paid for, for people.
        up_bytes, down_bytes: what one client sends and receives for it in a round.
        authority_bytes: what the key authority fetches for it in a round.
        total_bytes: what all of them send and receive for it.
        facts: whatever else a script may read, by name.
        rows: whatever else people should know: names and sentences.
        parts: the prices of what it has in it, or that it is compared with, by name.
    """

    name: str = ""
    up_bytes: int = 0
    down_bytes: int = 0
    authority_bytes: int = 0
    total_bytes: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, Price] = field(default_factory=dict)
