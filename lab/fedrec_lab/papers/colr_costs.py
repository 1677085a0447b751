"""Table 3 of the CoLR paper: what encryption costs in seconds and bytes, and the rules behind it.

"Towards Efficient Communication and Secure Federated Recommendation System via Low-rank Training",
appendix C and table 3, MovieLens-1M: 3,706 items of 64 numbers. FedMF and CoLR are encrypted with
CKKS, Top-K with one Paillier ciphertext for each value. The paper names no parameters; these follow
from its sizes:

- CKKS: the sizes are 1, 1, 1, 1, 2, 4 and 8 times 3,073 KB, which needs blocks of 32,768 values: a
  ring of degree 65,536 with 3 limbs of 8 bytes in 2 polynomials is 3,072 KB. (The text's 8,096
  values to a block contradict that.) What is left, 1.34 KB a block, is what the library writes
  around them.
- Paillier: 836.66 bytes a value, a ciphertext of 768 bytes (key of 3,072 bits) with what is written
  around it. Sizes are linear in the number of values but for one KB at 29,648 values.
- In the clear: 4 bytes a value, and 4 more for its index under Top-K, in a file with 430 bytes
  around them: with that the twelve printed ratios, ciphertext over plaintext, come out but for
  .01 in two of them. KB are 1,024 bytes, rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["COSTS", "N_ITEMS", "CostRow"]

N_ITEMS, DIM = 3706, 64
CKKS_SLOTS = 32_768
CKKS_BLOCK_BYTES = 3 * 2 * 65_536 * 8 + 1_376
PAILLIER_VALUE_BYTES = 836.66
PLAIN_FILE_BYTES = 430


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One line of the table.

    Attributes:
        name: method, with the rank or the share of values that is kept.
        scheme: what encrypts it in the paper.
        n_values: numbers in an update.
        client_seconds, server_seconds: as printed; the lowest and the highest where several lines
            are quoted together.
        cipher_kb, plain_kb: size of an update as printed, encrypted and in the clear.
        printed_ratio: the paper's Comm Ratio, one over the other.
    """

    name: str
    scheme: Literal["ckks", "paillier"]
    n_values: int
    client_seconds: float
    server_seconds: tuple[float, float]
    cipher_kb: int
    plain_kb: int
    printed_ratio: float

    @property
    def cipher_bytes(self) -> float:
        """The encrypted size by the rules above."""
        if self.scheme == "ckks":
            return math.ceil(self.n_values / CKKS_SLOTS) * CKKS_BLOCK_BYTES
        return self.n_values * PAILLIER_VALUE_BYTES

    @property
    def plain_bytes(self) -> int:
        """The size in the clear by the rules above."""
        return self.n_values * (4 if self.scheme == "ckks" else 8) + PLAIN_FILE_BYTES

    @property
    def ratio(self) -> float:
        """The Comm Ratio by the rules above."""
        return self.cipher_bytes / self.plain_bytes


def _row(name: str, scheme: Literal["ckks", "paillier"], per_item: int, *printed: float) -> CostRow:
    client, low, high, cipher, plain, ratio = printed
    return CostRow(
        name=name,
        scheme=scheme,
        n_values=N_ITEMS * per_item,
        client_seconds=client,
        server_seconds=(low, high),
        cipher_kb=int(cipher),
        plain_kb=int(plain),
        printed_ratio=ratio,
    )


def _topk(kept: int, client: float, server: float, *sizes: float) -> CostRow:
    return _row(f"topk/{kept}-of-{DIM}", "paillier", kept, client, server, server, *sizes)


COSTS = (
    _row("fedmf", "ckks", DIM, 0.93, 2.39, 2.39, 24587, 927, 26.52),
    _topk(1, 88.2, 88.1, 3028, 29, 103.09),
    _topk(2, 182, 186, 6056, 58, 103.83),
    _topk(4, 353, 365, 12112, 116, 104.20),
    _topk(8, 723, 751, 24225, 232, 104.40),
    _topk(16, 1450, 1484, 48448, 464, 104.49),
    _row("colr/rank-1", "ckks", 1, 0.07, 0.24, 0.25, 3073, 15, 206.31),
    _row("colr/rank-2", "ckks", 2, 0.07, 0.24, 0.25, 3073, 29, 104.63),
    _row("colr/rank-4", "ckks", 4, 0.07, 0.24, 0.25, 3073, 58, 52.69),
    _row("colr/rank-8", "ckks", 8, 0.07, 0.24, 0.25, 3073, 116, 26.44),
    _row("colr/rank-16", "ckks", 16, 0.15, 0.51, 0.51, 6147, 232, 26.49),
    _row("colr/rank-32", "ckks", 32, 0.30, 1.03, 1.03, 12293, 464, 26.51),
)
