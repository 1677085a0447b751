"""Facts about fedrec's own algorithms and their valid combinations: text and policy, no formulas.

An algorithm's file contains its computation. This file contains what other modules print about it,
refuse because of it or try with it. An algorithm from another package brings its own `About`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedrec.algorithms.declarations import (
    About,
    Circumstances,
    Needs,
    NoiseProposal,
    SumNoise,
)
from fedrec.algorithms.noisy_pairs import planned_release

_MANY_ITEMS = 8_192
WEIGHING_BYTES = 24
"""Bytes for each entry of the B of `ease`: G, its inverse and the solver's copies."""
_ANY_ROUNDS = 1_000_000
_USUAL_CLIP = 64.0
_LARGEST_USUAL_ADAM_RATE = 0.02
_USUAL_RADIUS = 1.0
_DELTA = 1e-5
"""FedRAP's paper names no delta."""
_TAIL = 10.0
"""One of 22,000 values of Laplace noise lies beyond ten times its scale."""


def _fedals(at: Circumstances) -> list[str]:
    """Warn about sums over few users."""
    return [
        "fedals sums vectors and items of users, without negatives. From a client with one user, "
        "the sum contains that user's vector and items. Clients need many users, or trusted "
        "clients in the same sum."
    ]


def _noisy_ease(at: Circumstances, noise: SumNoise) -> list[str]:
    """Report what the noise leaves of the counts and the pairs."""
    if not at.n_items:
        return []
    release = planned_release(at.n_items, at.n_rounds, noise)
    found = []
    if noise.users < release.users_for_counts:
        found.append(
            f"With privacy.expected_users = {noise.users:g}, the noise is likely to drown all "
            f"counts, and a model without information is refused. It takes about "
            f"{release.users_for_counts:.0f} users, or a larger privacy.epsilon."
        )
    if release.n_rows:
        return found
    whole = planned_release(at.n_items, _ANY_ROUNDS, noise)
    if at.n_rounds > 1 and not whole.n_rows:
        found.append(
            f"rounds.total is {at.n_rounds}, but only the first round sums anything. Set "
            "rounds.total = 1."
        )
    if whole.n_rows:
        found.append(
            f"rounds.total = {at.n_rounds} sums only the counts. With rounds.total = "
            f"{whole.fewest_rounds}, the pairs of {whole.n_rows} items would travel, too."
        )
    else:
        found.append(
            "Only counts travel, so every user gets the most common items. With this noise, pairs "
            f"become useful at about {whole.users_for_pairs:.0f} users (privacy.expected_users)."
        )
    return found


def _ease_for_noise(n_items: int, noise: SumNoise) -> NoiseProposal:
    """Propose counts alone, or counts with pairs."""
    release = planned_release(n_items, _ANY_ROUNDS, noise)
    if noise.users < release.users_for_counts:
        reason = (
            f"With {noise.users:g} users, the noise is likely to drown everything. About "
            f"{release.users_for_counts:.0f} users are needed, or a larger privacy.epsilon."
        )
    elif not release.n_rows:
        reason = (
            f"With {noise.users:g} users, counts alone are better: every user gets the most common "
            f"items. Pairs become useful at about {release.users_for_pairs:.0f} users."
        )
    else:
        reason = (
            f"With {noise.users:g} users, the pairs of {release.n_rows} of {n_items} items are "
            "worth their noise."
        )
    settings = {
        "algorithm.name": "ease",
        "update.structure": "dense",
        "rounds.total": release.fewest_rounds,
        "privacy.expected_users": noise.users,
    }
    return NoiseProposal(settings=settings, reason=reason)


def _ease(at: Circumstances) -> list[str]:
    """Warn about what the pair counts disclose, and about rounds that miss clients."""
    if at.noise is not None:
        return _noisy_ease(at, at.noise)
    found = [
        "ease discloses to every client, exactly, how many users hold each pair of items that "
        f"{at.minimum_item_users} or more hold. This includes small counts: a pair with a single "
        "holder is a fact about that user. `fedrec audit` lists the users that the sums of this "
        "machine's data would determine."
    ]
    if at.n_rounds > 1:
        found.append(
            "Each round counts a different part of the pairs. A round that closes without some "
            "clients counts fewer users than the others. rounds.minimum_clients (now "
            f"{at.minimum_clients}) sets how many clients a round needs."
        )
    if at.n_items > _MANY_ITEMS:
        gibibytes = WEIGHING_BYTES * at.n_items**2 / 2**30
        found.append(
            f"{at.n_items} items: if enough users hold all of them, every client needs about "
            f"{gibibytes:.1f} GiB of memory to compute the weights, and minutes in every round. "
            "Raise federation.minimum_item_users or rounds.deadline_seconds."
        )
    return found


def _sketch(at: Circumstances) -> list[str]:
    """Warn about what the sums disclose, and about rounds that miss clients or add nothing."""
    settings = at.settings
    together = (
        "Each sum of sketch covers the clients of its round, and sums over different users do not "
        f"belong together. Set rounds.minimum_clients (now {at.minimum_clients}) to the number of "
        "clients."
    )
    if at.noise is not None:
        return [
            "Under privacy.mechanism every history of sketch has length 1, so lambda must be "
            "smaller by the mean length of a history. algorithm.regularisation is "
            f"{settings.regularisation:g}. Values from 1 to 10 were best on MovieLens.",
            together,
        ]
    found = [
        f"sketch discloses to every client {settings.sums * settings.dim} sums over each item's "
        f"pair counts, for items that {at.minimum_item_users} or more users hold. With this number "
        "of sums, the counts of an item that is held together with few others can be decoded "
        "exactly. If there are as many sums as items, all counts can. `fedrec audit` tries it on "
        "this machine's data. A smaller algorithm.dim and a larger federation.minimum_item_users "
        "disclose less.",
        together,
    ]
    if at.n_rounds == settings.sums:
        found.append(
            f"rounds.total = {at.n_rounds} leaves no round that grades candidates on validation, "
            "so algorithm.dim, algorithm.regularisation and algorithm.form are used as set. Set "
            f"rounds.total = {settings.sums + 1}, or try them with `fedrec tune`."
        )
    elif at.n_rounds > settings.sums + 1:
        found.append(
            f"rounds.total = {at.n_rounds}, but sketch finishes after {settings.sums + 1}: "
            f"{settings.sums} sums and the round that grades. The other rounds cost bytes and "
            "change nothing."
        )
    return found


def _pfedrec(at: Circumstances) -> list[str]:
    """Warn if the public range is too narrow for the large steps of item rows."""
    if at.update.clip >= _USUAL_CLIP:
        return []
    low = (
        ""
        if at.update.structure == "dense"
        else " Here the range is that of A. Its values are coordinates of the same steps: about "
        "as large as those of whole rows, in some rounds larger."
    )
    return [
        f"update.clip is {at.update.clip:g}, but PFedRec takes large steps: with 16 about "
        "one value in a hundred is clipped on MovieLens-100K, with 256 one in a hundred "
        "thousand. Set update.clip = 256, and watch clipped_values in rounds.jsonl." + low
    ]


def nominal_epsilon(*, weight: float, rate: float, bound: float, scale: float) -> float:
    """Return the paper's epsilon of a user's upload, S_u / lambda with S_u = 2 w_u eta C.

    It is not a guarantee. The bound is that of one plain gradient step of norm C, but a client
    takes `local_epochs` passes of Adam, whose steps do not shrink with the gradient. The factor w_u
    makes it a bound of the aggregate: it is 1 / w_u times as large for a reader of the upload
    itself.

    Args:
        weight: w_u, the user's share of the mean.
        rate: eta.
        bound: C, in L2.
        scale: lambda.
    """
    return 2.0 * weight * rate * bound / scale


def _pfedclr(at: Circumstances) -> list[str]:
    settings, found = at.settings, []
    if not settings.aggregation:
        found.append(
            "algorithm.aggregation is false: uploads are summed and discarded. This is a control "
            "for experiments."
        )
    scale = settings.noise_scale
    if not scale:
        return found
    bound = settings.gradient_clip or 1.0
    epsilon = nominal_epsilon(weight=1.0, rate=settings.learning_rate, bound=bound, scale=scale)
    found.append(
        f"algorithm.noise_scale = {scale:g}: the paper's epsilon of a round is 2 w_u eta C / "
        f"lambda = {epsilon:.3g} w_u with C = "
        f"{bound:g}{'' if settings.gradient_clip else ' (nothing is clipped to it)'}. It is "
        "nominal and not a guarantee. The bound is that of one plain gradient step, but a client "
        f"takes {settings.local_epochs} passes of Adam. The factor w_u makes it a bound of the "
        "sum: for a reader of an upload, it is 1 / w_u times as large. Rounds add up. For a "
        "guarantee, see [privacy]."
    )
    if at.update.clip < _TAIL * scale:
        found.append(
            f"update.clip is {at.update.clip:g}, but noise of scale {scale:g} is often larger, and "
            f"clipped noise is not the paper's noise. Set update.clip = {_TAIL * scale + 4.0:g}."
        )
    return found


def _fedncf(at: Circumstances) -> list[str]:
    """Warn about settings that Adam ignores, and about large steps of Adam."""
    settings, found = at.settings, []
    if settings.optimiser == "sgd":
        return []
    fields = type(settings).model_fields
    unused = [
        f"algorithm.{name}"
        for name in ("user_rate_scale", "item_rate_scale")
        if getattr(settings, name) != fields[name].default
    ]
    if unused:
        found.append(
            f"{' and '.join(unused)} has an effect with sgd only: adam moves everything by eta."
        )
    if settings.learning_rate > _LARGEST_USUAL_ADAM_RATE:
        found.append(
            f"algorithm.learning_rate is {settings.learning_rate:g}. adam moves every value by "
            "about that much in each minibatch. 0.001 is usual."
        )
    return found


def accounted_epsilon(multiplier: float, n_releases: int, delta: float) -> float:
    """Return the epsilon of all of a user's releases, for a reader of the uploads themselves.

    Two users' clipped gradients are up to two lengths apart, so a release costs rho = 2 / z^2
    (zero-concentrated differential privacy, which is Renyi divergence at every order, Bun and
    Steinke 2016). Costs add up, and epsilon is at most rho + 2 sqrt(rho ln(1 / delta)).

    Args:
        multiplier: z, the noise's deviation divided by the clip.
    """
    rho = n_releases * 2.0 / multiplier**2
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def _fedrap(at: Circumstances) -> list[str]:
    """Report what the paper's noise guarantees and costs, and warn if decay overshoots."""
    settings, update = at.settings, at.update
    shrinks = settings.item_rate * settings.weight_decay
    if update.structure == "colr" and shrinks * math.sqrt(settings.dim / update.rank) >= 1:
        return [
            f"Under colr, rows shrink sqrt(dim / rank) = {math.sqrt(settings.dim / update.rank):g} "
            "times as fast within the round's subspace. Decay alone would flip their signs in "
            "every step. Lower algorithm.weight_decay or algorithm.item_rate, or raise update.rank."
        ]
    if settings.noise_where == "none":
        return []
    steps = settings.local_epochs if settings.noise_where == "grad" else 1
    epsilon = accounted_epsilon(settings.noise_multiplier, at.n_rounds * steps, _DELTA)
    each = f"{at.n_rounds} rounds" + (f" of {steps} local steps" if steps > 1 else "")
    found = [
        f'algorithm.noise_where = "{settings.noise_where}": over {each} the noise on a '
        f"user's own contributions gives epsilon {epsilon:,.0f} at delta {_DELTA:g}"
        + (", more for users with several minibatches" if steps > 1 else "")
        + ". This is the paper's noise, which is not accounted as [privacy] is. For a guarantee, "
        "use [privacy] with an algorithm that supports it."
    ]
    if settings.noise_where == "grad":
        values = f"{at.n_items * settings.dim:,}" if at.n_items else "items x dim"
        found.append(
            'algorithm.noise_where = "grad" makes every user step all rows in every minibatch, '
            f"with {values} random numbers each time. Use it for simulations of little data."
        )
    return found


def warnings_of_base(at: Circumstances) -> list[str]:
    """Return the warnings about the settings of a wrapper's base."""
    from fedrec.algorithms.registry import ALGORITHMS

    base = at.settings.base
    return [*map(in_base, ALGORITHMS[base.name].about.warnings(replace(at, settings=base)))]


def in_base(text: str) -> str:
    """Return an algorithm's words about its settings with their names inside a wrapper."""
    return text.replace("algorithm.", "algorithm.base.")


def _sums_changes(settings: Any) -> str:
    """Explain why changes add up to the mean of tables only if no client is missing."""
    if not (settings.mixing and settings.sums_changes):
        return ""
    return (
        'algorithm.upload = "change" (the alternative is "table") keeps the mean of all tables by '
        "adding up every round's changes, which must all be"
    )


def _fedrecgel(at: Circumstances) -> list[str]:
    """Warn if a radius is larger than what the paper tried."""
    settings = at.settings
    return [
        f"algorithm.{name} is {getattr(settings, name):g}. The paper tried 0.01 to 1 and found "
        "0.02 to 0.2 best."
        for name in ("radius_shared", "radius_private")
        if getattr(settings, name) > _USUAL_RADIUS
    ]


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
        summary="the papers' base, with CoLR",
        updates=("dense", "colr", "scolr", "svd", "topk"),
        combination_reason="FedMF sums changes of item rows, which every protection can add. It "
        "is measured by scores of single items, which every protocol can rank.",
        not_under_noise="",
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
    "fedals": About(
        summary="least squares, few rounds",
        protocols=("full", "sampled"),
        combination_reason="fedals sums statistics of solved users, not trained item rows, so "
        "there is no low-rank form. No negatives are drawn that could leave out held-out items.",
        warnings=_fedals,
        not_under_noise="its users send the matrices of least squares. Noise makes these "
        "indefinite, so items can no longer be solved",
        needs_everybody="every round of fedals is divided by the first round's counts, so all "
        "rounds must be",
        exact=True,
        exposed_to_members="the vector of every user that alone holds an item: the sum of that "
        "item's row is the vector times a number, and much of the user's "
        "history can be guessed from it",
        divergence_remedy="Raise algorithm.regularisation, or lower algorithm.alpha or "
        "algorithm.momentum.",
        shortfall="algorithm.alpha, algorithm.regularisation and algorithm.frequency_exponent",
        starter={"update.clip": 2.0, "rounds.total": 10},
    ),
    "ease": About(
        summary="exact counts of pairs, which every client learns",
        protocols=("full", "sampled"),
        combination_reason="ease sums exact counts of pairs of items, which have no low-rank form "
        "and cannot be compressed. No negatives are drawn that could leave out held-out items.",
        warnings=_ease,
        range_instead="exact counts, which are neither clipped nor rounded",
        modules=("numba",),
        not_under_noise="",
        one_release=True,
        noise_proposal=_ease_for_noise,
        needs_everybody="every round of ease counts a different part of the pairs, and all rounds "
        "must be",
        exact=True,
        exposed_in_the_clear="which pairs of items each client's users hold, and how many of its "
        "users hold them. From a client with one user, that is the user's complete history",
        exposed_to_members="the complete history of every user that alone holds an item: the pair "
        "counts of that item name all other items of that user",
        divergence_remedy="Raise algorithm.regularisation, and set rounds.minimum_clients to the "
        "number of clients, so that all parts are counted over the same users.",
        shortfall="algorithm.regularisation and federation.minimum_item_users",
        starter={"rounds.total": 4},
        audit="pairs",
    ),
    "sketch": About(
        summary="an item-item model from two sums, which users need no state for",
        protocols=("full", "sampled"),
        combination_reason="sketch sums co-occurrences along its own directions, which have no "
        "other low-rank form and cannot be compressed. No negatives are drawn "
        "that could leave out held-out items.",
        warnings=_sketch,
        range_instead="their range follows from algorithm.longest_history",
        not_under_noise="",
        needs_everybody="every round of sketch adds another sum, and all sums must be",
        exact=True,
        exposed_in_the_clear="which items each client's users hold: the rows of a sum that are not "
        "zero. From a client with one user, that is the user's complete history",
        exposed_to_members="the sketch of the complete history of every user that alone holds an "
        "item: the sum of that item's row is about that user alone",
        divergence_remedy="Raise algorithm.regularisation, and set rounds.minimum_clients to the "
        "number of clients, so that all sums are over the same users.",
        shortfall="algorithm.dim and federation.minimum_item_users",
        starter={"rounds.total": 3},
        audit="sketches",
    ),
    "pfedrec": About(
        summary="each user has a score function",
        updates=("dense", "colr"),
        combination_reason="pfedrec divides a sum of whole tables' changes by all participants. "
        "scolr divides by the users that trained a row of B, which is another "
        "mean. svd and topk would compress rows that users keep scoring with.",
        warnings=_pfedrec,
        not_under_noise="",
        divergence_remedy="Lower algorithm.item_rate_scale or algorithm.learning_rate.",
    ),
    "pfedclr": About(
        summary="a shared table that each user calibrates by a low-rank matrix",
        combination_reason="pfedclr trains the item table with Adam, which divides each coordinate "
        "by the size of its own gradients. Adam is therefore not rotation-invariant: steps of A in "
        "A B are not a low-rank form of its steps of the table.",
        warnings=_pfedclr,
        not_under_noise="its mean is weighted by users' numbers of interactions, which cannot be "
        "sent under privacy. Its own noise is algorithm.noise_scale",
        divergence_remedy="Lower algorithm.learning_rate or algorithm.personal_rate.",
    ),
    "fedncf": About(
        summary="a shared network scores users and items",
        combination_reason="fedncf sums changes of a network in addition to those of item rows, "
        'and no low-rank form is defined for a network. With algorithm.optimiser = "adam", rows '
        "have none either. Adam divides each coordinate by the size of its own gradients and is "
        "not rotation-invariant.",
        warnings=_fedncf,
        not_under_noise="",
        divergence_remedy="Lower algorithm.item_rate_scale, algorithm.user_rate_scale or "
        "algorithm.learning_rate.",
    ),
    "fedrap": About(
        summary="a shared item table plus one per user",
        updates=("dense", "colr"),
        combination_reason="FedRAP divides a sum of whole tables' changes by all participants. "
        "scolr divides by the users that trained a row of B, which is another "
        "mean. svd and topk would lose the decay of untouched rows.",
        needs={
            "colr": Needs(
                settings={"tables": "shared", "noise_where": "none"},
                reason="If users have tables of their own, these absorb what the shared table "
                "cannot learn within a round's subspace. The paper's noise is on whole "
                "rows. No low-rank form of either is defined.",
            )
        },
        warnings=_fedrap,
        not_under_noise="rows that a user does not touch shrink in its steps, so noise and one "
        "fixed divisor would have to cover the whole table of each user",
        divergence_remedy="Lower algorithm.difference_weight, whose term is not bounded below, or "
        "algorithm.item_rate.",
        shortfall="rounds.total, algorithm.item_rate and algorithm.weight_decay",
    ),
    "plgc": About(
        summary="an item table per user, mixed with the shared one",
        combination_reason="plgc sends tables that users keep. The effect of a round's low rank "
        "or a choice of entries on them is unknown.",
        warnings=warnings_of_base,
        needs_everybody=_sums_changes,
        not_under_noise="users' tables are weighted by numbers of training items, and noise and "
        "one fixed divisor would leave nothing of these weights",
        divergence_remedy="Lower the step sizes in algorithm.base or algorithm.weight.",
    ),
    "gpfedrec": About(
        summary="the server smooths each user's item table over similar users",
        protections=("none",),
        combination_reason=f"gpfedrec's {_COMPARED}",
        not_under_noise="its server needs the table of each user, but noise is on sums",
        exposed_in_the_clear=_APART,
        divergence_remedy="Lower algorithm.item_rate_scale, algorithm.user_rate_scale or "
        "algorithm.learning_rate.",
        shortfall="rounds.total, algorithm.item_rate_scale and algorithm.pull",
    ),
    "perfedrec": About(
        summary="a model for each user, for each cluster of users and for all",
        protections=("none",),
        combination_reason="perfedrec's server clusters users by their vectors, and adds up tables "
        "by cluster. The sum that a protection would open is over all clients. A user receives "
        "whole rows, which have no low-rank form.",
        not_under_noise="its server needs the vector of each user, but noise is on sums",
        exposed_in_the_clear=f"{_APART}. It also reads each user's own vector",
        divergence_remedy="Lower algorithm.learning_rate.",
        shortfall="rounds.total, algorithm.learning_rate and algorithm.clusters",
        modules=("scipy",),
    ),
    "cofedrec": About(
        summary="the server merges one group of similar users in each round",
        protections=("none",),
        combination_reason=f"cofedrec's {_COMPARED}",
        not_under_noise="its server needs the table of each user, but noise is on sums",
        exposed_in_the_clear=_APART,
        divergence_remedy="Lower algorithm.item_rate_scale or algorithm.learning_rate.",
        shortfall="rounds.total, algorithm.item_rate_scale and algorithm.weight",
        modules=("scipy",),
    ),
    "pfedgraph": About(
        summary="each user gets a mixture of similar users' tables",
        protections=("none",),
        combination_reason=f"pfedgraph's {_COMPARED}",
        not_under_noise="its server needs the table of each user, but noise is on sums",
        exposed_in_the_clear=f"{_APART}. It also reads each user's number of training items",
        divergence_remedy="Lower algorithm.learning_rate.",
        shortfall="rounds.total, algorithm.learning_rate and algorithm.smoothing",
    ),
    "fedrecgel": About(
        summary="sharpness-aware gradients of NeuMF, and Adam on the server",
        combination_reason="fedrecgel's gradients go through Adam, which divides every value by "
        "its own history and so is not the same in rotated coordinates. A "
        "low-rank form of them would be another algorithm.",
        range_instead="gradients have their own ranges and steps, algorithm.item_clip and "
        "network_clip, item_fraction_bits and network_fraction_bits",
        warnings=_fedrecgel,
        not_under_noise="its gradients of rows and of the network are on different grids, but "
        "noise is measured on a single grid",
        divergence_remedy="Lower algorithm.user_learning_rate or algorithm.learning_rate.",
        shortfall="rounds.total, algorithm.user_learning_rate and algorithm.learning_rate",
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
