"""The section `protection` of a settings file, and which clients a round withstands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fedrec.errors import SettingsError
from fedrec.section import Section

FEWEST_SUMMANDS = 3
"""Under encryption a sum of fewer clients is never opened, whatever settings or a roster say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Which clients and which coordinator a round withstands.

    Attributes:
        corrupt_share: share of the clients that pool what they know with the coordinator.
        dropout_share: share of the clients that may vanish once they have shared their secrets.
        malicious: whether the coordinator may also lie, for instance about who dropped out.
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
        """Return how many of so many clients are corrupt at most."""
        # One third of 300 is 100, whatever floating point makes of it.
        return math.ceil(self.corrupt_share * n_members - 1e-9)

    def fewest_listed(self, minimum_summands: int, n_members: int) -> int:
        """Return how many keys a list has at least, unless it has those of all members.

        As many as a sum needs, and all corrupt clients besides. Where everybody is in the list the
        coordinator has chosen nobody to be alone among them.
        """
        return min(n_members, minimum_summands + self.corrupt_among(n_members))

    def dropped_among(self, n_clients: int) -> int:
        """Return how many of so many clients may vanish."""
        return int(self.dropout_share * n_clients + 1e-9)

    def __str__(self) -> str:
        kind = "malicious" if self.malicious else "semi-honest"
        return (
            f"{self.corrupt_share:.4g} of the clients corrupt and {self.dropout_share:.4g} "
            f"dropping out, with a {kind} coordinator"
        )


class ProtectionSettings(Section):
    """How the coordinator adds updates up without reading them."""

    # What these fields are is in every plan and its fingerprint, whatever its protection, and in
    # every kit and run folder, whose files have all defaults written out: the last three, which
    # masks alone use, stay here so that these go on. What else one protection alone has stands
    # beside that one, in a section type of its own.
    name: str = Field(default="bfv", description="Who adds what up; each with what it gives.")
    preset: str = Field(
        default="default",
        description="Parameter set; `fedrec check` lists the sets and their prices.",
    )
    key_holder: Literal["authority", "members"] = Field(
        default="authority",
        description="Who holds the secret key and opens sums (bfv, paillier, ckks). "
        "authority: only the data owners' key authority, for which every closed round waits; "
        "clients can encrypt and open nothing; under ckks all clients are taken to be honest. "
        "members: the papers' protocol; every client has it and decrypts the published ciphertext "
        "sum, and everybody is taken to be honest but curious.",
    )
    corrupt_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the roster's clients, rounded up, that may pool what they know with "
        "the coordinator without reading anybody's update (masks).",
    )
    dropout_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of a round's clients that may vanish after they shared their secrets "
        "(masks); with more, the round is abandoned.",
    )
    coordinator: Literal["malicious", "semi-honest"] = Field(
        default="malicious",
        description="Whether the coordinator may lie about who dropped out, or only looks at "
        "what it gets (masks); the latter needs fewer neighbours.",
    )

    @property
    def tolerance(self) -> Tolerance:
        """Which clients and which coordinator rounds withstand."""
        return Tolerance(
            corrupt_share=self.corrupt_share,
            dropout_share=self.dropout_share,
            malicious=self.coordinator == "malicious",
        )
