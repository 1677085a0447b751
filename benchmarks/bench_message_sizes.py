"""Bytes of whole messages and the error of sums, under every protection and preset.

Two vectors: the demo's (MovieLens-100K, rank 4) and one above 100k values. Sizes are of messages
that were really made; a reveal of the sum of three checks the integers.
"""

from __future__ import annotations

from secrets import token_bytes

import numpy as np
from measuring import describe_machine

from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection.protection import in_one_step
from fedrec.protection.tags import KEY_BYTES

PRESETS = (
    ("none", "default"),
    ("bfv", "default"),
    ("ckks", "lean"),
    ("ckks", "paper"),
    ("paillier", "packed-3072"),
)
USERS = 1024


def main() -> None:
    """Print a table and the ratios to the paper's CKKS set."""
    print(describe_machine())
    for n_items, rank in ((1682, 4), (20_000, 11)):
        sizes = {}
        for name, preset in PRESETS:
            plan = Plan.model_validate(
                {
                    "federation": {"maximum_users": USERS},
                    "update": {"rank": rank},
                    "protection": {"name": name, "preset": preset},
                }
            )
            layout, planned = Layout.of(plan, n_items), in_one_step(protection_of(plan, n_items))
            protection = planned.over(layout.vector_spec)
            context, secret = planned.generate()
            with secret:
                whole = planned.member(context, secret, tag_key=token_bytes(KEY_BYTES))
            member = whole.over(protection)
            random = np.random.default_rng(0)
            vectors = [
                layout.pack(
                    {"item_embedding": random.integers(-(1 << 20), 1 << 20, (n_items, rank))},
                    random.integers(0, 300, n_items),
                    random.integers(0, 1 << 20, layout.length - layout.metrics_slice.start),
                )
                for _ in range(3)
            ]
            total = protection.accumulator(context)
            for vector in vectors:
                message = member.protect(vector, token_bytes(KEY_BYTES))
                total.add(message)
            if not np.array_equal(member.reveal(total.finish(), 3), sum(vectors)):
                raise SystemExit(f"the sum under {name}/{preset} is not exact")
            sizes[name, preset] = len(message)
            print(
                f"{layout.length:>8,} values  {name:<8} {preset:<11} {len(message):>10,} bytes  "
                f"{len(message) / layout.length:6.2f} B/value"
            )
        paper = sizes["ckks", "paper"]
        for key in (("bfv", "default"), ("ckks", "lean")):
            print(f"          {key[0]}/{key[1]} is {sizes[key] / paper:.1%} of ckks/paper")
        tensor = layout.tensors[0]
        step = tensor.step
        print(
            f"          a user's value is at most half a step, 2^{int(np.log2(step / 2))} of the "
            f"range [-{tensor.limit:g}, {tensor.limit:g}], from its float: "
            f"{step / 2 / (2 * tensor.limit):.2e} of the declared range"
        )


if __name__ == "__main__":
    main()
