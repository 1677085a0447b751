"""CKKS, used so that its sums are exact.

Cheon, Kim, Kim and Song, Homomorphic encryption for arithmetic of approximate numbers (eprint
2016/421), by SEAL. A decrypted CKKS value carries noise from which the secret key can be computed
(Li and Micciancio, eprint 2020/1533). Here every value is an integer encoded far above the noise:
`reveal` rounds to it and nothing of the noise is left. The planner proves that rounding is right;
parameters with which it cannot do so are refused.

What it does not give: what `bfv` does not give either, at more than twice its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedrec.errors import RevealRefused
from fedrec.protection.blocks import BlockMember, BlockProtection
from fedrec.protection.encryption_parameters import CKKS_PRESETS, plan_ckks
from fedrec.protection.plan import ProtectionPlan
from fedrec.protection.vector import Integers, VectorSpec

MAX_RESIDUE = 0.25
MAX_VALUE = 2.0**53


class CKKSMember(BlockMember):
    """Rounds every decrypted slot to the integer that it must be."""

    def whole(self, values: list[list[float]]) -> Integers:
        """Return the slots of all blocks as integers.

        Raises:
            RevealRefused: for a slot that is further from an integer than noise can carry it.
        """
        real = np.array(values, dtype=np.float64)
        rounded = np.rint(real)
        near = np.abs(real - rounded) <= MAX_RESIDUE
        if not (near & (np.abs(rounded) < MAX_VALUE)).all():
            raise RevealRefused(
                "The sum does not decrypt to whole numbers.",
                remedy="A contribution is damaged, or made with another key: abandon the round.",
            )
        return rounded.astype(np.int64)


class CKKS(BlockProtection):
    """The papers' scheme: exact at 30 (lean) or 70 (paper) bytes a value."""

    name: ClassVar[str] = "ckks"
    summary: ClassVar[str] = "the papers' scheme"
    needs_reveal: ClassVar[bool] = True
    presets: ClassVar[tuple[str, ...]] = tuple(CKKS_PRESETS)
    member_kind = CKKSMember
    retired: ClassVar[Mapping[str, str]] = {
        "approximate": "is gone: its sums kept noise from which the secret key can be computed, "
        "and no rounding that it did takes that away"
    }

    @classmethod
    def _plan(cls, spec: VectorSpec, preset: str) -> ProtectionPlan:
        return plan_ckks(spec, preset)
