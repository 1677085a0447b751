"""Facts about fedrec's own algorithms and their valid combinations: text and policy, no formulas.

An algorithm's file contains its computation. This file contains what other modules print about it,
refuse because of it or try with it. An algorithm from another package brings its own `About`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedrec.algorithms import settings_warnings
from fedrec.algorithms.declarations import About, Advice, Exposure, Needs, Support

_APART = (
    "each client's own item table in every round, one by one, with a digest of its user's id. Rows "
    "that a user trained differ from those that it only received, so they show its items"
)
"""The exposure to a server that makes a model for each user."""
_COMPARED = (
    "server compares users' item tables with each other. The sum that a protection would open "
    "contains no single table, and a user receives whole rows, which have no low-rank form."
)

ABOUT: Mapping[str, About] = {
    "fedmf": About(
        supports=Support(
            updates=("dense", "colr", "scolr", "svd", "topk"),
            reason="FedMF sums changes of item rows, which every protection can add. It is "
            "measured by scores of single items, which every protocol can rank.",
        ),
        not_under_noise="",
        advice=Advice(
            summary="the papers' base, with CoLR",
            divergence_remedy="Lower algorithm.learning_rate or raise algorithm.regularisation.",
            starter={
                "algorithm.dim": 16,
                "algorithm.learning_rate": 2.0,
                "algorithm.regularisation": 0.005,
                "algorithm.local_epochs": 1,
                "update.structure": "colr",
                "update.rank": 4,
                "update.clip": 2.0,
                "rounds.total": 60,
            },
        ),
    ),
    "fedals": About(
        supports=Support(
            protocols=("full", "sampled"),
            reason="fedals sums statistics of solved users, not trained item rows, so there is "
            "no low-rank form. No negatives are drawn that could leave out held-out items.",
        ),
        not_under_noise="its users send the matrices of least squares. Noise makes these "
        "indefinite, so items can no longer be solved",
        needs_all_clients="every round of fedals is divided by the first round's counts, so all "
        "rounds must be",
        advice=Advice(
            summary="least squares, few rounds",
            warnings=settings_warnings.fedals,
            divergence_remedy="Raise algorithm.regularisation, or lower algorithm.alpha or "
            "algorithm.momentum.",
            shortfall="algorithm.alpha, algorithm.regularisation and algorithm.frequency_exponent",
            starter={"update.clip": 2.0, "rounds.total": 10},
        ),
        exposes=Exposure(
            to_members="the vector of every user that alone holds an item: the sum of that "
            "item's row is the vector times a number, and much of the user's history can be "
            "guessed from it",
        ),
    ),
    "ease": About(
        supports=Support(
            protocols=("full", "sampled"),
            reason="ease sums exact counts of pairs of items, which have no low-rank form and "
            "cannot be compressed. No negatives are drawn that could leave out held-out items.",
        ),
        range_instead="exact counts, which are neither clipped nor rounded",
        modules=("numba",),
        not_under_noise="",
        needs_all_clients="every round of ease counts a different part of the pairs, and all "
        "rounds must be",
        audit="pairs",
        advice=Advice(
            summary="exact counts of pairs, which every client learns",
            warnings=settings_warnings.ease,
            noise_proposal=settings_warnings.ease_for_noise,
            divergence_remedy="Raise algorithm.regularisation, and set rounds.minimum_clients to "
            "the number of clients, so that all parts are counted over the same users.",
            shortfall="algorithm.regularisation and federation.minimum_item_users",
            starter={"rounds.total": 4},
        ),
        exposes=Exposure(
            in_the_clear="which pairs of items each client's users hold, and how many of its "
            "users hold them. From a client with one user, that is the user's complete history",
            to_members="the complete history of every user that alone holds an item: the pair "
            "counts of that item name all other items of that user",
        ),
    ),
    "sketch": About(
        supports=Support(
            protocols=("full", "sampled"),
            reason="sketch sums co-occurrences along its own directions, which have no other "
            "low-rank form and cannot be compressed. No negatives are drawn that could leave out "
            "held-out items.",
        ),
        range_instead="their range follows from algorithm.longest_history",
        not_under_noise="",
        needs_all_clients="every round of sketch adds another sum, and all sums must be",
        audit="sketches",
        advice=Advice(
            summary="an item-item model from two sums, which users need no state for",
            warnings=settings_warnings.sketch,
            divergence_remedy="Raise algorithm.regularisation, and set rounds.minimum_clients to "
            "the number of clients, so that all sums are over the same users.",
            shortfall="algorithm.dim and federation.minimum_item_users",
            starter={"rounds.total": 3},
        ),
        exposes=Exposure(
            in_the_clear="which items each client's users hold: the rows of a sum that are not "
            "zero. From a client with one user, that is the user's complete history",
            to_members="the sketch of the complete history of every user that alone holds an "
            "item: the sum of that item's row is about that user alone",
        ),
    ),
    "pfedrec": About(
        supports=Support(
            updates=("dense", "colr"),
            reason="pfedrec divides a sum of whole tables' changes by all participants. scolr "
            "divides by the users that trained a row of B, which is another mean. svd and topk "
            "would compress rows that users keep scoring with.",
        ),
        not_under_noise="",
        advice=Advice(
            summary="each user has a score function",
            warnings=settings_warnings.pfedrec,
            divergence_remedy="Lower algorithm.item_rate_scale or algorithm.learning_rate.",
        ),
    ),
    "pfedclr": About(
        supports=Support(
            reason="pfedclr trains the item table with Adam, which divides each coordinate by "
            "the size of its own gradients. Adam is therefore not rotation-invariant: steps of A "
            "in A B are not a low-rank form of its steps of the table.",
        ),
        not_under_noise="its mean is weighted by users' numbers of interactions, which cannot be "
        "sent under privacy. Its own noise is algorithm.noise_scale",
        advice=Advice(
            summary="a shared table that each user calibrates by a low-rank matrix",
            warnings=settings_warnings.pfedclr,
            divergence_remedy="Lower algorithm.learning_rate or algorithm.personal_rate.",
        ),
    ),
    "fedncf": About(
        supports=Support(
            reason="fedncf sums changes of a network in addition to those of item rows, and no "
            'low-rank form is defined for a network. With algorithm.optimiser = "adam", rows have '
            "none either. Adam divides each coordinate by the size of its own gradients and is "
            "not rotation-invariant.",
        ),
        not_under_noise="",
        advice=Advice(
            summary="a shared network scores users and items",
            warnings=settings_warnings.fedncf,
            divergence_remedy="Lower algorithm.item_rate_scale, algorithm.user_rate_scale or "
            "algorithm.learning_rate.",
        ),
    ),
    "fedrap": About(
        supports=Support(
            updates=("dense", "colr"),
            reason="FedRAP divides a sum of whole tables' changes by all participants. scolr "
            "divides by the users that trained a row of B, which is another mean. svd and topk "
            "would lose the decay of untouched rows.",
            needs={
                "colr": Needs(
                    settings={"tables": "shared", "noise_where": "none"},
                    reason="If users have tables of their own, these absorb what the shared "
                    "table cannot learn within a round's subspace. The paper's noise is on whole "
                    "rows. No low-rank form of either is defined.",
                )
            },
        ),
        not_under_noise="rows that a user does not touch shrink in its steps, so noise and one "
        "fixed divisor would have to cover the whole table of each user",
        advice=Advice(
            summary="a shared item table plus one per user",
            warnings=settings_warnings.fedrap,
            divergence_remedy="Lower algorithm.difference_weight, whose term is not bounded below, "
            "or algorithm.item_rate.",
            shortfall="rounds.total, algorithm.item_rate and algorithm.weight_decay",
        ),
    ),
    "plgc": About(
        supports=Support(
            reason="plgc sends tables that users keep. The effect of a round's low rank or a "
            "choice of entries on them is unknown.",
        ),
        needs_all_clients=settings_warnings.sums_changes,
        not_under_noise="users' tables are weighted by numbers of training items, and noise and "
        "one fixed divisor would leave nothing of these weights",
        advice=Advice(
            summary="an item table per user, mixed with the shared one",
            warnings=settings_warnings.warnings_of_base,
            divergence_remedy="Lower the step sizes in algorithm.base or algorithm.weight.",
        ),
    ),
    "gpfedrec": About(
        supports=Support(
            protections=("none",),
            reason=f"gpfedrec's {_COMPARED}",
        ),
        not_under_noise="its server needs the table of each user, but noise is on sums",
        advice=Advice(
            summary="the server smooths each user's item table over similar users",
            divergence_remedy="Lower algorithm.item_rate_scale, algorithm.user_rate_scale or "
            "algorithm.learning_rate.",
            shortfall="rounds.total, algorithm.item_rate_scale and algorithm.pull",
        ),
        exposes=Exposure(
            in_the_clear=_APART,
        ),
    ),
    "perfedrec": About(
        supports=Support(
            protections=("none",),
            reason="perfedrec's server clusters users by their vectors, and adds up tables by "
            "cluster. The sum that a protection would open is over all clients. A user receives "
            "whole rows, which have no low-rank form.",
        ),
        not_under_noise="its server needs the vector of each user, but noise is on sums",
        modules=("scipy",),
        advice=Advice(
            summary="a model for each user, for each cluster of users and for all",
            divergence_remedy="Lower algorithm.learning_rate.",
            shortfall="rounds.total, algorithm.learning_rate and algorithm.clusters",
        ),
        exposes=Exposure(
            in_the_clear=f"{_APART}. It also reads each user's own vector",
        ),
    ),
    "cofedrec": About(
        supports=Support(
            protections=("none",),
            reason=f"cofedrec's {_COMPARED}",
        ),
        not_under_noise="its server needs the table of each user, but noise is on sums",
        modules=("scipy",),
        advice=Advice(
            summary="the server merges one group of similar users in each round",
            divergence_remedy="Lower algorithm.item_rate_scale or algorithm.learning_rate.",
            shortfall="rounds.total, algorithm.item_rate_scale and algorithm.weight",
        ),
        exposes=Exposure(
            in_the_clear=_APART,
        ),
    ),
    "pfedgraph": About(
        supports=Support(
            protections=("none",),
            reason=f"pfedgraph's {_COMPARED}",
        ),
        not_under_noise="its server needs the table of each user, but noise is on sums",
        advice=Advice(
            summary="each user gets a mixture of similar users' tables",
            divergence_remedy="Lower algorithm.learning_rate.",
            shortfall="rounds.total, algorithm.learning_rate and algorithm.smoothing",
        ),
        exposes=Exposure(
            in_the_clear=f"{_APART}. It also reads each user's number of training items",
        ),
    ),
    "fedrecgel": About(
        supports=Support(
            reason="fedrecgel's gradients go through Adam, which divides every value by its own "
            "history and so is not the same in rotated coordinates. A low-rank form of them would "
            "be another algorithm.",
        ),
        range_instead="gradients have their own ranges and steps, algorithm.item_clip and "
        "network_clip, item_fraction_bits and network_fraction_bits",
        not_under_noise="its gradients of rows and of the network are on different grids, but "
        "noise is measured on a single grid",
        advice=Advice(
            summary="sharpness-aware gradients of NeuMF, and Adam on the server",
            warnings=settings_warnings.fedrecgel,
            divergence_remedy="Lower algorithm.user_learning_rate or algorithm.learning_rate.",
            shortfall="rounds.total, algorithm.user_learning_rate and algorithm.learning_rate",
        ),
    ),
}

CHANGED_SINCE_0_1: Mapping[str, Callable[[bool], str]] = {
    "ease": lambda is_noisy: (
        "under [privacy] clips and charges all its parts as one release since" if is_noisy else ""
    ),
    "sketch": lambda is_noisy: "rounds its sums to other fractions since",
}
"""How sums, under noise or without, differ from those of release 0.1, as words after the name.

Runs of other algorithms, and those with an empty text, can continue.
"""
