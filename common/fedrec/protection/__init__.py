"""Protections: sum vectors that the coordinator can't read."""

from fedrec.identity.secret import SecretKey
from fedrec.protection.lattice import BFV, CKKS
from fedrec.protection.masks.protection import Masks
from fedrec.protection.none import NoProtection
from fedrec.protection.paillier import Paillier
from fedrec.protection.protection import Accumulator, Member, Protection
from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.round_protocol import RoundTerms, Steps
from fedrec.protection.settings import ProtectionSettings, Tolerance
from fedrec.protection.vector import SegmentSpec, VectorSpec

__all__ = [
    "BFV",
    "CKKS",
    "PROTECTIONS",
    "Accumulator",
    "Masks",
    "Member",
    "NoProtection",
    "Paillier",
    "Protection",
    "ProtectionPlan",
    "ProtectionSettings",
    "RoundTerms",
    "SecretKey",
    "SegmentSpec",
    "Steps",
    "Tolerance",
    "VectorSpec",
]

PROTECTIONS: dict[str, type[Protection]] = {
    "none": NoProtection,
    "bfv": BFV,
    "ckks": CKKS,
    "paillier": Paillier,
    "masks": Masks,
}
"""Every protection by its name in settings, files and papers."""
