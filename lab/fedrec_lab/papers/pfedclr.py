"""PFedCLR and its ablations, tables 1, 2, 3 and 9.

"Beyond Personalization: Federated Recommendation with Calibration via Low-rank Decomposition"
(Chen et al.).

The paper's settings for all data sets: dim 16, rank 2, both rates .01 by Adam, minibatches of 256,
ten passes in each step, four negatives, 100 rounds with 60 % of the users, users with fewer than
ten interactions left out.
"""

from __future__ import annotations

from typing import Literal

from fedrec.algorithms import PFedCLRSettings
from fedrec.plan.schema import Plan
from fedrec.updates.settings import UpdateSettings
from fedrec_lab.papers.row import PublishedRow, paper_plan, published_row

_LEAK = (
    "The paper does not say where training negatives come from; the code that it descends from "
    "leaves held-out items out, as `paper` does here, and so the held-out item alone is never "
    "pushed down. The no-learning formula beside it says what that is worth without any model."
)
_SINGLE = (
    "The paper speaks of means over five runs, but its HR@10 are whole numbers of users, so that "
    "they are single runs: expect a point or two between seeds."
)
_START = "First values (N(0, .1^2), B from N(0, 1)) are readings: the paper does not say."
_NOISE = (
    "Laplace noise of this scale on every value of each upload; its epsilon is nominal. What noise "
    "carries beyond update.clip = {clip:g} is clipped."
)
_ABLATION = "What the ablation trains in which step is a reading."


def _plan(
    variant: Literal["clr", "cf", "af"] = "clr", *, noise_scale: float = 0.0, clip: float = 4.0
) -> Plan:
    return paper_plan(
        PFedCLRSettings(variant=variant, noise_scale=noise_scale),
        UpdateSettings(structure="dense", clip=clip),
        rounds=100,
        user_fraction=0.6,
        counted=True,
    )


def _row(
    dataset: str,
    published: tuple[float, float],
    minutes: float,
    *,
    variant: Literal["clr", "cf", "af"] = "clr",
    noise_scale: float = 0.0,
) -> PublishedRow:
    name, notes, clip = f"pfedclr/{dataset}", [_LEAK, _SINGLE, _START], 4.0
    source = "PFedCLR, table 1"
    if variant != "clr":
        name, source = f"{name}/{variant}", "PFedCLR, table 2"
        notes.insert(0, _ABLATION)
    if noise_scale:
        # Of 15 million values of a round's noise about one lies beyond 16.5 times its scale.
        clip = 20.0 * noise_scale + 4.0
        name, source = f"{name}/noise-{noise_scale:g}", "PFedCLR, table 9"
        notes.insert(0, _NOISE.format(clip=clip))
    return published_row(
        name,
        published,
        source,
        _plan(variant, noise_scale=noise_scale, clip=clip),
        minutes=minutes,
        note=" ".join(notes),
    )


ROWS = (
    _row("ml-100k", (0.9989, 0.9225), 6),
    _row("ml-100k", (0.8452, 0.6955), 6, variant="cf"),
    _row("ml-100k", (0.6151, 0.4307), 6, variant="af"),
    _row("ml-100k", (0.9979, 0.9215), 9, noise_scale=0.5),
    _row("ml-100k", (0.9968, 0.9059), 9, noise_scale=1.0),
    _row("filmtrust", (0.9102, 0.7798), 4),
    _row("filmtrust", (0.7754, 0.6313), 4, variant="cf"),
    _row("filmtrust", (0.6717, 0.5429), 4, variant="af"),
    _row("filmtrust", (0.9122, 0.7741), 7, noise_scale=0.5),
    _row("filmtrust", (0.8882, 0.6965), 7, noise_scale=1.0),
)
