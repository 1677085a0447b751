"""The section `protection` of a settings file, and the clients that a round withstands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedrec.errors import SettingsError
from fedrec.section import Section

FEWEST_SUMMANDS = 3
"""Under encryption, a sum of fewer clients is never opened, regardless of settings and roster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The dishonest clients and the coordinator that a round withstands.

    Attributes:
        corrupt_share: the share of clients that collude with the coordinator.
        dropout_share: the share of clients that may drop out after they shared their secrets.
        malicious: whether the coordinator may also lie, for instance about dropouts.
    """

    corrupt_share: float
    dropout_share: float
    malicious: bool

    def __post_init__(self) -> None:
        problems = tuple(
            f"{name} is {share}, not in [0, 1)"
            for name, share in (
                ("corrupt_share", self.corrupt_share),
                ("dropout_share", self.dropout_share),
            )
            if not 0 <= share < 1
        )
        if problems:
            raise SettingsError(
                "; ".join(problems) + ".", remedy="Use shares such as 0.1.", problems=problems
            )

    def corrupt_among(self, n_members: int) -> int:
        """Return the largest number of corrupt clients among `n_members`."""
        # One third of 300 is 100, in spite of floating-point errors.
        return math.ceil(self.corrupt_share * n_members - 1e-9)

    def fewest_listed(self, minimum_summands: int, n_members: int) -> int:
        """Return the smallest number of keys that a round's key list may have.

        The list must have enough keys for a sum, plus one for each client that may be corrupt, or
        the keys of all members. With all members in it, the coordinator can't have isolated a
        client.
        """
        return min(n_members, minimum_summands + self.corrupt_among(n_members))

    def dropped_among(self, n_clients: int) -> int:
        """Return the largest number of clients among `n_clients` that may drop out."""
        return int(self.dropout_share * n_clients + 1e-9)

    def __str__(self) -> str:
        kind = "malicious" if self.malicious else "semi-honest"
        return (
            f"{self.corrupt_share:.4g} of the clients corrupt and {self.dropout_share:.4g} "
            f"dropping out, with a {kind} coordinator"
        )


class ProtectionSettings(Section):
    """How the coordinator adds updates up without reading them."""

    # These fields are in every plan and its fingerprint, and in every kit and run folder, whose
    # files list all defaults. Only masks use the last three, but they stay here so that existing
    # files remain valid. Other settings of a single protection are in a section type next to it.
    name: str = Field(default="bfv", description="How updates are protected.")
    preset: str = Field(
        default="default",
        description="The parameter set. `fedrec check` lists the sets and their prices.",
    )
    key_holder: Literal["authority", "members"] = Field(
        default="authority",
        description="The party with the secret key, which opens sums (bfv, paillier, ckks). "
        "authority: only the data owners' key authority. Every closed round waits for it. Clients "
        "encrypt, and open nothing. Under ckks, all clients are assumed to be honest. members: the "
        "papers' protocol. Every client has the key and decrypts the published ciphertext sum. All "
        "parties are assumed to be honest but curious.",
    )
    corrupt_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="The share of the roster's clients, rounded up, that may collude with the "
        "coordinator without learning any update (masks).",
    )
    dropout_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="The share of a round's clients that may drop out after they shared their "
        "secrets (masks). If more do, the round is abandoned.",
    )
    coordinator: Literal["malicious", "semi-honest"] = Field(
        default="malicious",
        description="Whether the coordinator may lie about dropouts, or only reads what it "
        "receives (masks). The second needs fewer neighbours.",
    )

    @property
    def tolerance(self) -> Tolerance:
        """The dishonest clients and the coordinator that rounds withstand."""
        return Tolerance(
            corrupt_share=self.corrupt_share,
            dropout_share=self.dropout_share,
            malicious=self.coordinator == "malicious",
        )
