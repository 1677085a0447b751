"""A round of every user by the plain twins: what it sends and leaves, from earlier tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from conformance.toys import TOYS
from reference import (
    plain_cofedrec,
    plain_fedmf,
    plain_fedncf_rounds,
    plain_fedrap,
    plain_fedrecgel,
    plain_gpfedrec,
    plain_perfedrec,
    plain_pfedclr,
    plain_pfedgraph,
    plain_plgc,
    plain_toys,
)
from reference.plain_fedmf import batches_of, samples_of
from reference.plain_fedmf_rounds import Structure, fedmf_round
from reference.plain_pfedrec import train_user

from fedrec.algorithms.individual import clusters_of
from fedrec.data import UserSplit
from fedrec.random_streams import Purpose, stream_key, uniform

SEED = 7
OWN = "own_item_embedding"
Tensors = dict[str, Any]


@dataclass(kw_only=True)
class Round:
    """What a twin says that a round sends and leaves; `taking` are those who may take part."""

    change: Tensors
    shared: Tensors
    private: Tensors
    counts: Any = 0
    loss: Any = None
    taking: Any = None


def histories_of(users: UserSplit) -> tuple[list[int], list[list[int]]]:
    return users.user_keys().tolist(), [users.train_of(u).tolist() for u in range(len(users))]


# Twins: from the tensors before a round to what it leaves.


def fedmf(learner, users, shared, private, round_id, number, near):
    own, update = learner.server.plan.algorithm, learner.server.plan.update
    kept = {"svd": {"rank": update.rank}, "topk": {"n_kept": 48}}.get(update.structure, {})
    structure = Structure() if update.structure == "dense" else Structure(
        name=update.structure, normaliser=update.normaliser, subset=update.subset, **kept
    )  # fmt: skip
    rule = plain_fedmf.Rule(
        rate=own.learning_rate, gamma=own.regularisation, epochs=own.local_epochs,
        batch_size=own.batch_size,
    )  # fmt: skip
    made = fedmf_round(
        shared["item_embedding"], private["user_embedding"], *histories_of(users), rule, structure,
        learner.server.algorithm.sent.structure.basis(SEED, round_id), seed=SEED, round_id=round_id,
        per_positive=4,
    )  # fmt: skip
    entries = {"entries": made.entries} if update.normaliser == "entry" else {}
    return Round(
        change={"item_embedding": made.change, **entries}, counts=made.counts,
        shared={"item_embedding": made.table}, private={"user_embedding": made.vectors},
    )  # fmt: skip


def fedncf(learner, users, shared, private, round_id, number, near):
    own, n_items = learner.server.plan.algorithm, learner.server.n_items
    rate, adam = own.learning_rate, own.optimiser == "adam"
    scaled = (rate, rate * own.user_rate_scale, rate * n_items * own.item_rate_scale)
    plain = torch.optim.SGD if own.weight_decay else None
    settings = plain_fedncf_rounds.Settings(
        aggregation=own.aggregation, batch_size=own.batch_size, epochs=own.local_epochs,
        rates=(rate,) * 3 if adam else scaled, decay=own.weight_decay,
        optimiser=torch.optim.Adam if adam else plain,
    )  # fmt: skip
    made = plain_fedncf_rounds.fedncf_round(
        shared, private["user_embedding"], *histories_of(users), settings, seed=SEED,
        round_id=round_id, per_positive=4, near=plain_fedncf_rounds.NEAR_A_KINK if near else 0.0,
    )  # fmt: skip
    weighed = own.aggregation == "mf_secavg"
    weight = {"samples": [made.weight]} if weighed else {"users": [int(made.taking.sum())]}
    return Round(
        change={"item_embedding": made.rows, **made.network, **weight},
        counts=made.counts if weighed else 0, shared=made.after,
        private={"user_embedding": made.vectors}, taking=made.taking if near else None,
    )  # fmt: skip


def pfedrec(learner, users, shared, private, round_id, number, near):
    own, table = learner.server.plan.algorithm, shared["item_embedding"]
    basis = learner.server.algorithm.sent.structure.basis(SEED, round_id)
    visits = [
        train_user(
            private["user_embedding"][index], float(private["user_bias"][index]), table, key,
            positives, positives, seed=SEED, round_id=round_id, per_positive=4,
            epochs=own.local_epochs, batch_size=own.batch_size, rate=own.learning_rate,
            item_rate=own.learning_rate * learner.server.n_items * own.item_rate_scale, basis=basis,
        )
        for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True))
    ]  # fmt: skip
    change = sum(rows - table for _, _, rows in visits)
    scores = {"personal_scores": np.stack([rows @ w + c for w, c, rows in visits])}
    return Round(
        # What travels of it in a subspace is A, and B B^T = (dim / rank) I.
        change={
            "item_embedding": change if basis is None else change @ basis.T * len(basis) / own.dim,
            "users": [len(users)],
        },
        shared={"item_embedding": table + change / len(users)},
        private={
            "user_embedding": np.stack([w for w, _, _ in visits]),
            "user_bias": np.array([c for _, c, _ in visits]),
            **(scores if own.personal_items else {}),
        },
    )  # fmt: skip


def fedrap(learner, users, shared, private, round_id, number, near):
    own, table = learner.server.plan.algorithm, shared["item_embedding"]
    weight, slower = plain_fedrap.schedule_of(own.schedule, number), own.round_decay ** (number - 1)
    basis = learner.server.algorithm.sent.structure.basis(SEED, round_id)
    after, change = {name: values.copy() for name, values in private.items()}, np.zeros(table.shape)
    epochs, losses, untouched = set(), [], 0
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, len(table), 1)
        untouched += len(table) - len({item for item, _ in samples})
        values = {name: torch.tensor(rows[index]) for name, rows in private.items()}
        if own.tables != "private":
            values = {"item_embedding": torch.tensor(table)} | values
        found, loss, n_epochs = plain_fedrap.visit(
            values,
            [batches_of(SEED, round_id, epoch, key, samples, own.batch_size)
             for epoch in range(own.local_epochs)],
            rate=own.learning_rate * slower, item_rate=own.item_rate * slower,
            decay=own.weight_decay, factor=own.batch_decay, tolerance=own.tolerance,
            clip=own.noise_clip if own.noise_where == "grad" else None, tables=own.tables,
            sparsity=own.sparsity, basis=None if basis is None else torch.tensor(basis),
            apart=weight * own.difference_weight, sparse=weight * own.sparsity_weight,
        )  # fmt: skip
        epochs.add(n_epochs)
        losses.append(loss)
        if own.tables != "private":
            change += found["item_embedding"].numpy() - table
        for name in private:
            after[name][index] = found[name].numpy()
    assert untouched > 3 * len(table)
    # Who no longer improves stops alone, and shrinks untouched rows in the steps that it took.
    assert number > 1 or own.tolerance < 0.1 or len(epochs) > 2
    sent = change if basis is None else change @ basis.T * len(basis) / own.dim
    alone = own.tables == "private"
    return Round(
        change={} if alone else {"item_embedding": sent, "users": [len(users)]},
        shared={"item_embedding": table + change / len(users)}, private=after,
        loss=None if "tolerance" in own.model_fields_set else np.array(losses),
    )  # fmt: skip


def pfedclr(learner, users, shared, private, round_id, number, near):
    own = learner.server.plan.algorithm
    settings = plain_pfedclr.Settings(
        variant=own.variant, rate=own.learning_rate, personal_rate=own.personal_rate,
        epochs=own.local_epochs, batch_size=own.batch_size, longest=own.gradient_clip,
        aggregation=own.aggregation,
    )  # fmt: skip
    names = [name for name in private if name != "personal_scores"]
    mine = [{name: torch.from_numpy(private[name][u]) for name in names} for u in range(len(users))]
    made = plain_pfedclr.pfedclr_round(
        torch.from_numpy(shared["item_embedding"]), mine, *histories_of(users), settings,
        seed=SEED, round_id=round_id, n_items=learner.server.n_items,
    )  # fmt: skip
    after = {name: np.stack([one[name].numpy() for one in made.private]) for name in names}
    return Round(
        change={"item_embedding": made.change.numpy(), "samples": [made.weight]},
        shared={"item_embedding": made.table.numpy()}, loss=np.array(made.losses),
        private=after | {"personal_scores": torch.stack(made.scores).numpy()},
    )  # fmt: skip


def fedrecgel(learner, users, shared, private, round_id, number, near):
    own = learner.server.plan.algorithm
    settings = plain_fedrecgel.Settings(
        dim=own.dim, n_hidden=own.hidden_layers, chunk=own.batch_size, rate=own.learning_rate,
        user_rate=own.user_learning_rate, radius_shared=own.radius_shared,
        radius_private=own.radius_private,
    )  # fmt: skip
    names = [tensor.name for tensor in learner.server.layout.tensors if tensor.signed]
    given = {name: torch.from_numpy(values.copy()) for name, values in shared.items()}
    mine = {name: torch.from_numpy(values.copy()) for name, values in private.items()}
    # Users count their own rounds: 1 - .9^n is kept of n of them.
    ages = np.rint(np.log1p(-private["user_embedding_mean_weight"]) / math.log(0.9)).astype(int)
    state = plain_fedrecgel.State(
        shared={name: given[name] for name in names},
        moments={
            name: plain_fedrecgel.Adam(
                steps=number - 1, mean=given[f"{name}_mean"], square=given[f"{name}_square"]
            )
            for name in names
        },
        vectors=list(mine["user_embedding"]),
        own_moments=[
            plain_fedrecgel.Adam(steps=int(age), mean=mean, square=square)
            for age, mean, square in zip(
                ages, mine["user_embedding_mean"], mine["user_embedding_square"], strict=True
            )
        ],
    )
    made = plain_fedrecgel.fedrecgel_round(
        state, *histories_of(users), settings, seed=SEED, round_id=round_id,
        near=3e-7 if near else 0.0,
    )  # fmt: skip
    after, taking = made.after, np.asarray(made.taking)
    moments = {
        f"{name}_{part}": getattr(after.moments[name], part).numpy()
        for name in names
        for part in ("mean", "square")
    }
    powers = {"mean_power": np.array(0.9**number), "square_power": np.array(0.999**number)}
    ages = ages + taking
    return Round(
        change={**made.gradients, "users": [int(taking.sum())]},
        shared={name: after.shared[name].numpy() for name in names} | moments | powers,
        private={
            "user_embedding": torch.stack(after.vectors).numpy(),
            "user_embedding_mean": torch.stack([m.mean for m in after.own_moments]).numpy(),
            "user_embedding_square": torch.stack([m.square for m in after.own_moments]).numpy(),
            "user_embedding_mean_weight": 1 - 0.9**ages,
            "user_embedding_square_weight": 1 - 0.999**ages,
        },
        loss=None if near else made.loss, taking=taking if near else None,
    )  # fmt: skip


def plgc_rule(learner):
    """Return how PLGC's plain visit goes over a base."""
    own, inner = learner.server.plan.algorithm, learner.server.plan.algorithm.base
    projects = own.weight and own.regulariser == "err" and own.projector
    network = plain_plgc.NETWORK if projects else ()
    layers = [f"{name}_{layer}" for layer in (1, 2, 3, 4) for name in ("weight", "bias")]
    rates = dict.fromkeys(network, own.projector_rate)
    rates |= dict.fromkeys((*layers, "user_embedding", "user_bias", "C"), inner.learning_rate)
    steps = (("user_embedding", "C", *network),)
    if inner.name != "fedmf":
        rates["C"] = inner.learning_rate * learner.server.n_items * inner.item_rate_scale
    if inner.name == "pfedrec":
        steps = (("user_embedding", "user_bias"), ("C", *network))
    elif inner.name == "fedncf":
        rates["user_embedding"] = inner.learning_rate * inner.user_rate_scale
        steps = (("user_embedding", "C", *layers, *network),)
    return plain_plgc.Rule(
        base=inner.name, steps=steps, rates=rates, epochs=inner.local_epochs,
        batch_size=inner.batch_size, gamma=inner.regularisation if inner.name == "fedmf" else 0.0,
        per_occurrence=inner.name == "fedmf", mixing=own.mixing, regulariser=own.regulariser,
        weight=own.weight, off=own.off_weight, temperature=own.temperature,
    )  # fmt: skip


def plgc(learner, users, shared, private, round_id, number, near, taking=None):
    """Every user who takes part trains; G becomes the mean of their tables, by training items."""
    rule, whole = plgc_rule(learner), learner.server.plan.algorithm.upload == "table"
    before = {name: torch.tensor(values) for name, values in shared.items()}
    table = before.pop("item_embedding")
    named = {name.removeprefix(f"{OWN}_"): name for name in private}
    kept = {k: v for k, v in named.items() if k not in ("begun", "personal_scores", OWN)}
    after = {name: values.copy() for name, values in private.items()}
    sums, total = dict.fromkeys((OWN, *before), 0.0), 0
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        if taking is not None and not taking[index]:
            continue
        begun = private["begun"][index] if "begun" in private else number > 1
        own = {short: torch.tensor(private[name][index]) for short, name in kept.items()}
        own["C"] = torch.tensor(private[OWN][index]) if begun else None
        found, net, scores = plain_plgc.visit(
            rule, own, before, table, key, positives, seed=SEED, round_id=round_id
        )
        total += len(positives)
        for name, values in {OWN: found["C"], **net}.items():
            sums[name] = sums[name] + len(positives) * values
        for short, name in kept.items():
            after[name][index] = found[short].numpy()
        after[OWN][index] = found["C"].numpy()
        for name, values in (("personal_scores", scores.numpy()), ("begun", 1.0)):
            if name in after:
                after[name][index] = values
    mean = {name: (values / total).numpy() for name, values in sums.items()}
    mean["item_embedding"] = mean.pop(OWN)
    sent = {
        name: total * (values - (0 if whole and name == "item_embedding" else shared[name]))
        for name, values in mean.items()
    }
    return Round(change=sent | {"samples": [total]}, shared=mean, private=after)


def plgc_fedrap(learner, users, shared, private, round_id, number, near):
    """Both tables move and shrink as wholes, so that norms change where no row is touched."""
    own, inner = learner.server.plan.algorithm, learner.server.plan.algorithm.base
    rule = plain_plgc.Rule(
        base="", steps=(), rates={}, epochs=inner.local_epochs, batch_size=inner.batch_size,
        weight=own.weight,
    )  # fmt: skip
    table, slower = torch.tensor(shared["item_embedding"]), 0.97 ** (number - 1)
    names = ("own_embedding", "user_embedding", "user_bias")
    change, after = torch.zeros_like(table), {name: v.copy() for name, v in private.items()}
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, len(table), 4)
        values = {name: torch.tensor(np.asarray(private[name][index])) for name in names}
        if number == 1:
            values["own_embedding"] = table
        found, scores = plain_plgc.added_visit(
            values | {"item_embedding": table},
            [batches_of(SEED, round_id, epoch, key, samples, inner.batch_size)
             for epoch in range(inner.local_epochs)],
            rate=0.3 * slower, item_rate=8.0 * slower, decay=2e-3, factor=0.95,
            apart=0.3 * math.tanh(number / 10), sparse=0.2 * math.tanh(number / 10), rule=rule,
        )  # fmt: skip
        change += found["item_embedding"] - table
        for name, value in {**found, "personal_scores": scores, "begun": torch.tensor(1.0)}.items():
            if name in after:
                after[name][index] = value.numpy()
    return Round(
        change={"item_embedding": change.numpy(), "users": [len(users)]},
        shared={"item_embedding": (table + change / len(users)).numpy()}, private=after,
    )  # fmt: skip


def gpfedrec(learner, users, shared, private, round_id, number, near):
    own, table = learner.server.plan.algorithm, torch.tensor(shared["item_embedding"])
    received, scores = "smoothed_item_embedding", "personal_scores"
    after, tables, losses = {name: v.copy() for name, v in private.items()}, [], []
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, len(table), 4)
        batches = [
            batch
            for epoch in range(own.local_epochs)
            for batch in batches_of(SEED, round_id, epoch, key, samples, own.batch_size)
        ]
        values = {
            name: torch.tensor(rows[index])
            for name, rows in private.items()
            if name not in (OWN, received, scores)
        }
        found, mine, after[scores][index], loss = plain_gpfedrec.visit(
            values, table, torch.tensor(private[received][index]), batches,
            rate=own.learning_rate, user_rate=own.learning_rate * own.user_rate_scale,
            item_rate=own.learning_rate * len(table) * own.item_rate_scale, pull=own.pull,
        )  # fmt: skip
        for name, value in {**found, OWN: mine}.items():
            after[name][index] = value.numpy()
        tables.append(mine.numpy())
        losses.append(loss)
    loss = np.array(losses) if own.local_epochs == 1 else None
    return smoothed_round(own, table.numpy(), tables, after, loss)


def smoothed_round(own, table, tables, after, loss=None):
    near_ones, all_users = plain_gpfedrec.smoothed(
        tables, threshold=own.threshold, neighbours=own.neighbours, layers=own.layers,
        distance=own.similarity == "distance",
    )  # fmt: skip
    return Round(
        change={"item_embedding": sum(tables) - len(tables) * table, "users": [len(tables)]},
        shared={"item_embedding": all_users}, loss=loss,
        private=after | {"smoothed_item_embedding": np.stack(near_ones)},
    )  # fmt: skip


def plgc_apart(learner, users, shared, private, round_id, number, near):
    """PLGC around a base whose server makes a model for each user, and C stays the user's."""
    own, inner = learner.server.plan.algorithm, learner.server.plan.algorithm.base
    table, after = torch.tensor(shared["item_embedding"]), {k: v.copy() for k, v in private.items()}
    rule = plain_plgc.Rule(
        base="", steps=(), rates={}, epochs=inner.local_epochs, batch_size=inner.batch_size,
        mixing=own.mixing, weight=own.weight, off=own.off_weight,
    )  # fmt: skip
    smooths = inner.name == "gpfedrec"
    received = "smoothed_item_embedding" if smooths else "cluster_item_embedding"
    kept = {
        name: name.removeprefix(f"{OWN}_")
        for name in private
        if name not in (OWN, received, "begun", "personal_scores")
    }
    rates = dict.fromkeys((*kept.values(), "C"), inner.learning_rate)
    rates |= {name: own.projector_rate for name in plain_plgc.NETWORK if name in rates}
    if smooths:
        rates["user_embedding"] *= inner.user_rate_scale
        rates["C"] *= len(table) * inner.item_rate_scale
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, len(table), 4)
        epochs = [batches_of(SEED, round_id, epoch, key, samples, inner.batch_size)
                  for epoch in range(inner.local_epochs)]  # fmt: skip
        v = {short: torch.tensor(private[name][index]) for name, short in kept.items()}
        begins = smooths if not own.mixing else not private["begun"][index]
        v["C"] = table if begins else torch.tensor(private[OWN][index])
        got = torch.tensor(private[received][index])
        if smooths:
            v, scores = plain_plgc.pulled_visit(
                v, got, epochs, rates=rates, pull=inner.pull, rule=rule
            )
        else:
            v, scores = plain_plgc.clustered_visit(
                v, table, got, epochs, rates=rates, rule=rule,
                released=inner.convolution == "from_first",
            )  # fmt: skip
        found = {name: v[short] for name, short in kept.items()} | {OWN: v["C"]}
        found |= {"personal_scores": scores, "begun": torch.tensor(1.0)}
        for name, value in found.items():
            if name in after:
                after[name][index] = value.numpy()
    if smooths:
        return smoothed_round(inner, table.numpy(), list(after[OWN]), after)
    given = (received,) if own.mixing else (OWN, received)
    return clustered_round(inner, users, table.numpy(), after, round_id, received=given)


def visits(learner, users, private, round_id, visit):
    """Yield (the user's position, what `visit` makes of its private values and minibatches)."""
    own, n_items = learner.server.plan.algorithm, learner.server.n_items
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, n_items, 4)
        batches = [
            batch
            for epoch in range(own.local_epochs)
            for batch in batches_of(SEED, round_id, epoch, key, samples, own.batch_size)
        ]
        yield index, visit({n: torch.tensor(v[index]) for n, v in private.items()}, batches)


def cofedrec(learner, users, shared, private, round_id, number, near):
    """The server's draws are fedrec's, as is K-means; what follows from them is not."""
    own, table = learner.server.plan.algorithm, shared["item_embedding"]
    labels = torch.tensor(shared["item_cluster"])
    after = {name: values.copy() for name, values in private.items()}
    for index, (head, mine, _) in visits(
        learner, users, private, round_id,
        lambda v, batches: plain_cofedrec.visit(
            v, v[OWN], labels, batches, rate=own.learning_rate, weight=own.weight,
            item_rate=own.learning_rate * len(table) * own.item_rate_scale,
            temperature=own.temperature,
        ),
    ):  # fmt: skip
        for name, value in {**head, OWN: mine}.items():
            after[name][index] = value.numpy()
    tables, order = after[OWN].copy(), np.argsort(users.user_keys())
    mean = tables.mean(0)
    clusters = clusters_of(mean, own.clusters, seed=SEED + round_id)
    key = np.asarray(stream_key(SEED, Purpose.GROUPS, round_id))
    user, cluster = uniform(key, np.arange(2)).tolist()
    there = sorted(set(clusters.tolist()))
    items = np.nonzero(clusters == there[int(cluster * len(there))])[0]
    group = plain_cofedrec.members(tables[order], int(user * len(users)), items)
    if own.others == "global":
        after[OWN][:] = mean
    after[OWN][order[group]] = tables[order[group]].mean(0)
    return Round(
        change={"item_embedding": tables.sum(0) - len(users) * table, "users": [len(users)]},
        shared={"item_embedding": mean, "item_cluster": clusters}, private=after,
    )  # fmt: skip


def perfedrec(learner, users, shared, private, round_id, number, near):
    own, table = learner.server.plan.algorithm, shared["item_embedding"]
    cluster = "cluster_item_embedding"
    after = {name: values.copy() for name, values in private.items()}
    for index, (p, mine, _) in visits(
        learner, users, private, round_id,
        lambda v, batches: plain_perfedrec.visit(
            v["user_embedding"], v[OWN], batches, rate=own.learning_rate,
            released=own.convolution == "from_first",
        ),
    ):  # fmt: skip
        after["user_embedding"][index], after[OWN][index] = p.numpy(), mine.numpy()
        three = mine.numpy() + private[cluster][index] + table
        after["personal_scores"][index] = three @ p.numpy() / 3
    return clustered_round(own, users, table, after, round_id, received=(OWN, cluster))


def clustered_round(own, users, table, after, round_id, *, received):
    tables, order = after[OWN].copy(), np.argsort(users.user_keys())
    labels = clusters_of(after["user_embedding"][order], own.clusters, seed=SEED + round_id)
    for name in sorted(set(labels.tolist())):
        members = order[labels == name]
        for each in received:
            after[each][members] = tables[members].mean(0)
    return Round(
        change={"item_embedding": tables.sum(0) - len(users) * table, "users": [len(users)]},
        shared={"item_embedding": tables.mean(0)}, private=after,
    )  # fmt: skip


def pfedgraph(learner, users, shared, private, round_id, number, near):
    own, table = learner.server.plan.algorithm, shared["item_embedding"]
    after = {name: values.copy() for name, values in private.items()}
    for index, (p, mine, _) in visits(
        learner, users, private, round_id,
        lambda v, batches: plain_pfedgraph.visit(
            v["user_embedding"], v[OWN], v["anchor"], batches, rate=own.learning_rate,
            weight=own.weight, sign=1.0 if own.sign == "released" else -1.0,
        ),
    ):  # fmt: skip
        after["user_embedding"][index], after[OWN][index] = p.numpy(), mine.numpy()
        after["personal_scores"][index] = mine.numpy() @ p.numpy()
    tables = list(after[OWN].copy())
    first = learner.server.algorithm.derived.initial_shared().tensors["item_embedding"]
    found, anchors = plain_pfedgraph.mixtures(
        tables, first, np.diff(users.train_indptr).tolist(), own.smoothing
    )
    after[OWN][:], after["anchor"][:] = found, anchors
    return Round(
        change={"item_embedding": sum(tables) - len(users) * table, "users": [len(users)]},
        shared={"item_embedding": sum(tables) / len(users)}, private=after,
    )  # fmt: skip


def toy_visit(name, own, values, epochs, pace):
    """Return a user's values after a round by the plain loop of a toy."""
    if name == "sam-toy":
        rates = {"item_embedding": 10.0, "user_embedding": 0.5, "user_bias": 0.5}
        return plain_toys.sgd_visit(values, epochs, plain_toys.sharpness, rates, radius=own.radius)
    if name == "wrapper-toy":
        rates = {"item_embedding": 0.4, "user_embedding": 0.4, "own_item": 0.4}
        return plain_toys.sgd_visit(
            values, epochs, plain_toys.wrapper(0.01), rates, per_occurrence=True
        )
    if name == "schedule-toy":
        rates = {"item_embedding": 3.0 * pace, "user_embedding": 0.3 * pace}
        return plain_toys.sgd_visit(values, epochs, plain_toys.schedule(pace), rates)
    rates = {"item_embedding": 3.0, "item_bias": 3.0, "scale": 0.2, "bias": 0.2}
    middle = plain_toys.sgd_visit(
        values, epochs[: own.local_epochs], plain_toys.several, rates
    )  # fmt: skip
    private = ["own_rows", "user_embedding"]
    rest = epochs[own.local_epochs :]
    return plain_toys.adam_visit(middle, rest, plain_toys.several, 0.05, private)


def toy(learner, users, shared, private, round_id, number, near):
    algorithm, n_items = learner.server.algorithm, learner.server.n_items
    means = {entry.name: entry.mean for entry in algorithm.parameters}
    n_epochs = sum(phase.epochs for phase in algorithm.phases({"pace": 1.0}))
    pace, tables = float(shared.get("pace", 1.0)), {k: v for k, v in shared.items() if k != "pace"}
    change = {name: np.zeros_like(values) for name, values in tables.items()}
    after, counts = {name: values.copy() for name, values in private.items()}, np.zeros(n_items)
    for index, (key, positives) in enumerate(zip(*histories_of(users), strict=True)):
        samples = samples_of(SEED, round_id, key, positives, positives, n_items, 4)
        epochs = [
            batches_of(SEED, round_id, epoch, key, samples, algorithm.settings.batch_size)
            for epoch in range(n_epochs)
        ]
        values = {name: torch.tensor(value) for name, value in tables.items()}
        values |= {name: torch.tensor(value[index]) for name, value in private.items()}
        found = toy_visit(algorithm.name, algorithm.settings, values, epochs, pace)
        counts[sorted({item for item, _ in samples})] += 1
        for name in change:
            weight = len(positives) if means[name] == "samples" else 1
            change[name] += weight * (found[name].numpy() - tables[name])
        for name in private:
            after[name][index] = found[name].numpy()
    following = {}
    for name, total in change.items():
        by = {"samples": users.n_train, "users": len(users)}.get(means[name], len(users))
        if means[name] == "holders":
            by = np.maximum(counts, 1).reshape(-1, *[1] * (total.ndim - 1))
        following[name] = tables[name] + total / by
    weights = {"users": [len(users)], "samples": [users.n_train]}
    sent = {tensor.name for tensor in learner.server.layout.tensors}
    return Round(
        change=change | {name: value for name, value in weights.items() if name in sent},
        counts=counts if algorithm.derived.counts_rows else 0, private=after,
        shared=following | ({"pace": pace * 1.25} if "pace" in shared else {}),
    )  # fmt: skip


TWINS: dict[str, Callable[..., Round]] = {
    "fedmf": fedmf, "fedncf": fedncf, "pfedrec": pfedrec, "fedrap": fedrap, "pfedclr": pfedclr,
    "fedrecgel": fedrecgel, "gpfedrec": gpfedrec, "cofedrec": cofedrec,
    "perfedrec": perfedrec, "pfedgraph": pfedgraph, "plgc": plgc, "plgc-fedrap": plgc_fedrap,
    "plgc-apart": plgc_apart,
    **dict.fromkeys((kind.name for kind in TOYS), toy),
}  # fmt: skip
