"""What `update.indices` = "clear" goes with: where values can be added index by index."""

from __future__ import annotations

from collections.abc import Iterator

from fedrec.config.schema import Plan
from fedrec.protection import PROTECTIONS

__all__ = ["index_problems"]

Problem = tuple[tuple[str, ...], str]


def index_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what contradicts indices in the clear: the settings and a sentence."""
    update, name = plan.update, plan.protection.name
    if update.indices == "hidden" or update.structure != "topk":
        return
    advice = "or leave update.indices out, which sends zeros along."
    if PROTECTIONS[name].without_entries:
        yield (
            ("update.indices", "protection.name"),
            f'update.indices is "clear", but under {name} {PROTECTIONS[name].without_entries}. Set '
            f'protection.name = "paillier" with protection.preset = "single-3072", {advice}',
        )
    elif plan.protection.preset.startswith(("packed", "default")):
        yield (
            ("protection.preset", "update.indices"),
            f'update.indices is "clear", but under paillier/{plan.protection.preset} '
            "values share ciphertexts: clients' indices differ, and nobody can move a slot inside "
            "a ciphertext to where another client has it. Set protection.preset = "
            f'"single-3072", {advice}',
        )
    if update.compress == "client":
        yield (
            ("update.compress", "update.indices"),
            'update.compress is "client", which is for clients of several users, but '
            'under update.indices = "clear" a client is one user. Set update.compress = "user", '
            + advice,
        )
    if plan.privacy.mechanism != "none":
        yield (
            ("update.indices", "privacy.mechanism"),
            f'update.indices is "clear", but privacy.mechanism = '
            f'"{plan.privacy.mechanism}" puts noise on every value, so that none could be left '
            'out. Set update.indices = "hidden", or privacy.mechanism = "none".',
        )
