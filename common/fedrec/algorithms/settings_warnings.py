"""Warnings about the settings of fedrec's own algorithms, and settings to propose under noise.

Each takes the circumstances of a plan and returns sentences for the person that chooses settings.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fedrec.algorithms.declarations import (
    Circumstances,
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


def fedals(at: Circumstances) -> list[str]:
    """Warn about sums over few users, and about more dimensions than rows."""
    found = [
        "fedals sums vectors and items of users, without negatives. From a client with one user, "
        "the sum contains that user's vector and items. Clients need many users, or trusted "
        "clients in the same sum."
    ]
    if 0 < at.n_held < at.settings.dim:
        found.append(
            f"algorithm.dim = {at.settings.dim}, but enough users hold only {at.n_held} items. "
            "More dimensions than items cost bytes for nothing. Set a smaller algorithm.dim."
        )
    return found


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


def ease_for_noise(n_items: int, noise: SumNoise) -> NoiseProposal:
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


def ease(at: Circumstances) -> list[str]:
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


def sketch(at: Circumstances) -> list[str]:
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
    if 0 < at.n_held < settings.dim:
        found.append(
            f"algorithm.dim = {settings.dim}, but enough users hold only {at.n_held} items. `ease` "
            f"sends {at.n_held * (at.n_held + 1) // 2} numbers, and sketch {settings.sums} times "
            f'{at.n_held * settings.dim}. Set algorithm.name = "ease", or a smaller algorithm.dim.'
        )
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


def pfedrec(at: Circumstances) -> list[str]:
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

    It is not a guarantee. Laplace noise needs a bound of the L1 norm, and C bounds the L2 norm: L1
    may be sqrt(values) times as large. The bound is that of one plain gradient step, but a client
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


def pfedclr(at: Circumstances) -> list[str]:
    """Warn if uploads are discarded, and report what the paper's noise guarantees and costs."""
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
        "nominal and not a guarantee. Laplace noise needs an L1 bound, and C is one of L2. It "
        "bounds one plain gradient step, but a client takes "
        f"{settings.local_epochs} passes of Adam. The factor w_u makes it a bound of the sum: for "
        "a reader of an upload, it is 1 / w_u times as large. Rounds add up. For a guarantee, see "
        "[privacy]."
    )
    if at.update.clip < _TAIL * scale:
        found.append(
            f"update.clip is {at.update.clip:g}, but noise of scale {scale:g} is often larger, and "
            f"clipped noise is not the paper's noise. Set update.clip = {_TAIL * scale + 4.0:g}."
        )
    return found


def fedncf(at: Circumstances) -> list[str]:
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


def fedrap(at: Circumstances) -> list[str]:
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
    return [*map(in_base, ALGORITHMS[base.name].about.advice.warnings(replace(at, settings=base)))]


def in_base(text: str) -> str:
    """Return an algorithm's words about its settings with their names inside a wrapper."""
    return text.replace("algorithm.", "algorithm.base.")


def sums_changes(settings: Any) -> str:
    """Explain why changes add up to the mean of tables only if no client is missing."""
    if not (settings.mixing and settings.sums_changes):
        return ""
    return (
        'algorithm.upload = "change" (the alternative is "table") keeps the mean of all tables by '
        "adding up every round's changes, which must all be"
    )


def fedrecgel(at: Circumstances) -> list[str]:
    """Warn if a radius is larger than what the paper tried."""
    settings = at.settings
    return [
        f"algorithm.{name} is {getattr(settings, name):g}. The paper tried 0.01 to 1 and found "
        "0.02 to 0.2 best."
        for name in ("radius_shared", "radius_private")
        if getattr(settings, name) > _USUAL_RADIUS
    ]
