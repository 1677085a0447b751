"""The section `protection` of a settings file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedrec.protection.tolerance import Tolerance
from fedrec.section import Section


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
