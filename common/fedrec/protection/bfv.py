"""BFV: exact sums of integers modulo a plain modulus that no sum reaches.

Fan and Vercauteren, Somewhat practical fully homomorphic encryption (eprint 2012/144), by SEAL.
Only additions happen, so neither relinearisation nor Galois keys are kept.

What it does not give: all members share the secret key, so one member who colludes with the
coordinator opens every message, unless the key authority keeps it and members have an `encryptor`;
ciphertexts are not authenticated but by tags (`tags`); the security is classical.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrec.protection.blocks import BlockMember, BlockProtection
from fedrec.protection.encryption_parameters import BFV_PRESETS, plan_bfv
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.vector import Integers, VectorSpec


class BFVMember(BlockMember):
    """Takes the centred integers as they are decrypted."""

    def whole(self, values: list[list[float]]) -> Integers:
        """Return the slots of all blocks; BFV decrypts to integers."""
        return np.array(values, dtype=np.int64)


class BFV(BlockProtection):
    """Exact sums at 13.5 bytes a value."""

    name: ClassVar[str] = "bfv"
    summary: ClassVar[str] = "exact integers"
    needs_reveal: ClassVar[bool] = True
    can_tag: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = tuple(BFV_PRESETS)
    member_kind = BFVMember

    @classmethod
    def _plan(cls, spec: VectorSpec, preset: str) -> ProtectionPlan:
        return plan_bfv(spec, preset)
