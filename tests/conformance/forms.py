"""The two forms in which sampled algorithms are trained, for tests of how users are grouped."""

from __future__ import annotations

import pytest

__all__ = ["FORMS"]

FORMS = [
    "compiled",
    pytest.param(
        "lockstep",
        marks=pytest.mark.skip(
            reason="BLAS chooses its kernels by the shape of a batch, so that in lockstep a "
            "user's bits depend on how many others train beside it; seen on AMD EPYC. The "
            "lockstep forms are not repaired: the trainer takes their place."
        ),
    ),
]
"""Values of a test's fixture `form`, given indirectly."""
