"""Encrypting one Paillier plaintext in four ways, decrypting and adding, and bytes for each value.

The ways: phe's own `raw_encrypt` (r^n, by gmpy2 here as well), a member's (uniform residues modulo
p^2 and q^2 from two tables), and what the public key alone allows (Damgard, Jurik and Nielsen) with
a table and without. All take turns in every repetition, each with a key of the same length; tables
are made before, and their time is printed apart. The fastest that needs no assumption beyond
Paillier's is what members do; the ratio of phe's time to theirs is the figure to look at.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable
from importlib.metadata import version

import gmpy2
import phe
from gmpy2 import mpz
from measuring import describe_machine, interleaved, print_ratio, summary

from fedrec.protection import PROTECTIONS, SegmentSpec, VectorSpec
from fedrec.protection.paillier_key import FixedBase, PaillierSecretKey

PHE, MEMBER, PUBLIC, PLAIN = "phe", "member, tables", "public key, table", "public key, no table"


def main() -> None:
    """Print times for both lengths, and sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--count", type=int, default=20, help="ciphertexts in one run")
    options = parser.parse_args()
    print(describe_machine())
    print(f"gmpy2 {version('gmpy2')}, {gmpy2.mp_version()}, phe {version('phe')}")
    for key_bits in (2048, 3072):
        times(key_bits, options.runs, options.count)
    sizes()


def times(key_bits: int, runs: int, count: int) -> None:
    """Measure one length of keys; times are of one ciphertext."""
    began = time.perf_counter()
    key = PaillierSecretKey.generate(key_bits)
    print(f"\n{key_bits} bits: a key takes {time.perf_counter() - began:.2f} s")
    n, limit, half = key.public.n, key.public.n_squared, key_bits // 2
    p, q = (int(number) for number in key._numbers[:2])
    theirs = phe.PaillierPublicKey(int(n))
    opening = phe.PaillierPrivateKey(theirs, p, q)
    base = gmpy2.powmod(-(mpz(secrets.randbelow(int(n))) ** 2) % n, n, limit)
    began = time.perf_counter()
    table = FixedBase(base, limit, half)
    print(f"  the public table takes {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    key.encrypt(mpz(1))
    print(f"  a member's tables take {time.perf_counter() - began:.2f} s")
    plaintext = mpz(secrets.randbits(key_bits - 2))

    def public(power: Callable[[mpz], mpz]) -> mpz:
        return (1 + plaintext * n) * power(mpz(secrets.randbits(half))) % limit

    ways = {
        PHE: lambda: theirs.raw_encrypt(int(plaintext)),
        MEMBER: lambda: key.encrypt(plaintext),
        PUBLIC: lambda: public(table.power),
        PLAIN: lambda: public(lambda exponent: gmpy2.powmod(base, exponent, limit)),
    }
    for way in ways.values():
        assert opening.raw_decrypt(int(way())) == plaintext
    found = interleaved({name: repeated(way, count) for name, way in ways.items()}, runs=runs)
    each = {name: [seconds / count * 1e3 for seconds in found[name]] for name in found}
    for name in (PUBLIC, PLAIN):
        print(f"  {name}: {summary(each[name], 'ms')}")
    print_ratio(PHE, MEMBER, {name: [ms / 1e3 for ms in each[name]] for name in each})
    one = key.encrypt(plaintext)
    others = {
        "phe decrypts": lambda: opening.raw_decrypt(int(one)),
        "a member decrypts": lambda: key.decrypt(one),
        "an addition": lambda: one * one % limit,
    }
    found = interleaved({name: repeated(way, count) for name, way in others.items()}, runs=runs)
    for name, seconds in found.items():
        print(f"  {name}: {summary([value / count * 1e3 for value in seconds], 'ms')}")


def repeated(action: Callable[[], object], count: int) -> Callable[[], object]:
    """Return what does something ``count`` times."""
    return lambda: [action() for _ in range(count)]


def sizes() -> None:
    """Print the bytes of a value above 100,000 values whose messages each may have 32 bits."""
    segment = SegmentSpec(name="values", length=100_000, max_abs_sum=2**41 - 1)
    spec = VectorSpec(segments=(segment,), max_summands=1024)
    kind = PROTECTIONS["paillier"]
    print("\n100,000 values of 32 bits, up to 1024 messages")
    for preset in kind.presets:
        plan = kind.plan(spec, preset=preset)
        print(f"  {preset}: {plan.message_bytes / spec.length:.2f} bytes for each value")


if __name__ == "__main__":
    main()
