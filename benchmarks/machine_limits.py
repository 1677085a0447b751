"""What a machine can do at most: a STREAM triad for memory, a matrix product for arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch

_VALUES = 1 << 25
"""128 MiB an array, far more than caches hold."""
_SIZE = 2048
TRIAD, GEMM = "STREAM triad", "matrix product"
TRIAD_BYTES = 3 * 4 * _VALUES
"""Two arrays read, one written, as STREAM counts: without the read of what is overwritten."""
GEMM_FLOPS = 2 * _SIZE**3


def limits() -> dict[str, Callable[[], object]]:
    """Return both measurements, to be timed beside what they are the limits of."""
    one, two = torch.rand(_VALUES), torch.rand(_VALUES)
    out = torch.empty(_VALUES)
    left, right = torch.rand(_SIZE, _SIZE), torch.rand(_SIZE, _SIZE)
    product = torch.empty(_SIZE, _SIZE)
    return {
        TRIAD: lambda: torch.add(one, two, alpha=3.0, out=out),
        GEMM: lambda: torch.mm(left, right, out=product),
    }
