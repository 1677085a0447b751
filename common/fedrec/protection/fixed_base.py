"""Powers of one base by a table: as many multiplications as the exponent has windows.

With windows of w bits the table holds base^(j 2^(w i)) for every window i and digit j, so that a
power is the product of one entry from each row and nothing is squared (Brickell, Gordon, McCurley
and Wilson, Fast exponentiation with precomputation, Eurocrypt 1992).
"""

from __future__ import annotations

import gmpy2
from gmpy2 import mpz

__all__ = ["FixedBase"]


class FixedBase:
    """A base with its table.

    Args:
        base: the base, below ``modulus``.
        modulus: all arithmetic is modulo it.
        exponent_bits: exponents are below 2^exponent_bits.
        window_bits: the table has 2^window_bits entries for each of the
            exponent_bits / window_bits windows.
    """

    def __init__(
        self, base: mpz, modulus: mpz, exponent_bits: int, *, window_bits: int = 7
    ) -> None:
        self._modulus = modulus
        self._window_bits = window_bits
        self._rows: list[list[mpz]] = []
        for _ in range(-(-exponent_bits // window_bits)):
            row = [mpz(1)]
            for _ in range((1 << window_bits) - 1):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: mpz) -> mpz:
        """Return base^exponent; digits beyond the table would be lost, so they are an error.

        Raises:
            ValueError: for an exponent that is negative or longer than was said.
        """
        digits = gmpy2.unpack(exponent, self._window_bits)
        result, modulus = mpz(1), self._modulus
        if len(digits) > len(self._rows):
            raise ValueError("The exponent is longer than the table.")
        for row, digit in zip(self._rows, digits, strict=False):
            result = result * row[digit] % modulus
        return result
