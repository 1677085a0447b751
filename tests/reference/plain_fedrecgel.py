"""FedRecGEL one user at a time in float64: NeuMF, three passes, and torch's own Adam."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from reference.plain_fedmf import key_of, samples_of, splitmix, user_key
from torch.nn.functional import binary_cross_entropy_with_logits, linear

SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class Settings:
    dim: int
    n_hidden: int
    chunk: int
    rate: float
    user_rate: float
    radius_shared: float
    radius_private: float
    per_positive: int = 4


@dataclass(frozen=True, kw_only=True)
class Adam:
    """One tensor's moments, as torch.optim.Adam counts and names them."""

    steps: int
    mean: torch.Tensor
    square: torch.Tensor

    @classmethod
    def new(cls, value):
        return cls(steps=0, mean=torch.zeros_like(value), square=torch.zeros_like(value))

    def step(self, value, gradient, rate):
        """Return the value after a step of torch.optim.Adam, and its moments."""
        moving = value.clone().requires_grad_()
        optimiser = torch.optim.Adam([moving], lr=rate)
        optimiser.state[moving] = {
            "step": torch.tensor(float(self.steps)),
            "exp_avg": self.mean.clone(),
            "exp_avg_sq": self.square.clone(),
        }
        moving.grad = gradient.clone()
        optimiser.step()
        state = optimiser.state[moving]
        assert float(state["step"]) == self.steps + 1
        after = Adam(steps=self.steps + 1, mean=state["exp_avg"], square=state["exp_avg_sq"])
        return moving.detach(), after


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything of a version: shared tensors, users' vectors, and the moments of both."""

    shared: dict[str, torch.Tensor]
    moments: dict[str, Adam]
    vectors: list[torch.Tensor]
    own_moments: list[Adam]

    @classmethod
    def new(cls, shared, vectors):
        shared = {name: torch.from_numpy(np.array(value)) for name, value in shared.items()}
        vectors = [torch.from_numpy(np.array(value)) for value in vectors]
        return cls(
            shared=shared,
            moments={name: Adam.new(value) for name, value in shared.items()},
            vectors=vectors,
            own_moments=[Adam.new(value) for value in vectors],
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """What users sent, who took part, their mean losses, and the state that follows."""

    gradients: dict[str, torch.Tensor]
    each: list[dict[str, torch.Tensor]] = field(default_factory=list)
    taking: np.ndarray
    loss: np.ndarray
    after: State


def logits_of(vector, rows, shared, settings, margins=None):
    """NeuMF; append to `margins` how close an input of each layer's ReLU is to 0.

    A layer below which all units are off has inputs of exactly 0, in float32 as well.
    """
    d = settings.dim
    x = torch.cat([vector[d:].expand(len(rows), -1), rows[:, d:]], dim=1)
    for layer in range(1, settings.n_hidden + 1):
        inputs = linear(x, shared[f"weight_{layer}"], shared[f"bias_{layer}"])
        if margins is not None:
            there = inputs.detach()[inputs.detach() != 0].abs()
            margins.append(float(there.min()) if len(there) else np.inf)
        x = torch.relu(inputs)
    last = settings.n_hidden + 1
    both = torch.cat([vector[:d] * rows[:, :d], x], dim=1)
    return linear(both, shared[f"weight_{last}"], shared[f"bias_{last}"])[:, 0]


def chunks_of(seed, round_id, user, positives, n_items, settings):
    """Cut the positives, shuffled and each with its negatives behind it, into chunks."""
    per = settings.per_positive
    samples = samples_of(seed, round_id, user, positives, positives, n_items, per)
    n = len(positives)
    stream = user_key(key_of(seed, 5, round_id, 0), user)
    words = [splitmix((stream + place) & (1 << 64) - 1) >> 22 for place in range(n)]
    ordered = []
    for place in sorted(range(n), key=lambda place: (words[place], place)):
        ordered.append(samples[place])
        ordered += samples[n + per * place : n + per * (place + 1)]
    return [ordered[at : at + settings.chunk] for at in range(0, len(ordered), settings.chunk)]


def loss_of(vector, shared, chunks, settings, margins=None):
    """The sum over chunks of each one's mean."""
    total = torch.zeros((), dtype=vector.dtype)
    for chunk in chunks:
        where = torch.tensor([item for item, _ in chunk])
        label = torch.tensor([label for _, label in chunk], dtype=vector.dtype)
        logits = logits_of(vector, shared["item_embedding"][where], shared, settings, margins)
        total = total + binary_cross_entropy_with_logits(logits, label)
    return total


def gradients_of(vector, shared, chunks, settings, margins=None):
    """Return the loss, its gradient by the vector and those by what is shared."""
    vector = vector.clone().requires_grad_()
    shared = {name: value.clone().requires_grad_() for name, value in shared.items()}
    loss = loss_of(vector, shared, chunks, settings, margins)
    own, *others = torch.autograd.grad(loss, [vector, *shared.values()])
    return float(loss.detach()), own, dict(zip(shared, others, strict=True))


def uphill(value, gradient, norm, radius):
    return value if norm == 0 or radius == 0 else value + radius * gradient / (norm + SMALLEST)


def user_gradients(vector, shared, chunks, settings, margins=None):
    """Return the loss and both sharpness-aware gradients, each taken alone from the old values."""
    loss, own, others = gradients_of(vector, shared, chunks, settings, margins)
    norm = float(sum(value.square().sum() for value in others.values()).sqrt())
    there = {
        name: uphill(value, others[name], norm, settings.radius_shared)
        for name, value in shared.items()
    }
    _, _, sent = gradients_of(vector, there, chunks, settings, margins)
    up = uphill(vector, own, float(own.norm()), settings.radius_private)
    _, moving, _ = gradients_of(up, shared, chunks, settings, margins)
    return loss, moving, sent


def fedrecgel_round(state: State, keys, histories, settings, *, seed, round_id, near=0.0):
    """Train every user but those with a unit this close to its kink, and take the server's step."""
    n_items = len(state.shared["item_embedding"])
    sums = {name: torch.zeros_like(value) for name, value in state.shared.items()}
    vectors, own_moments, each = list(state.vectors), list(state.own_moments), []
    taking, losses = np.ones(len(keys), dtype=np.bool_), np.zeros(len(keys))
    for index, key in enumerate(keys):
        chunks = chunks_of(seed, round_id, key, histories[index], n_items, settings)
        margins = [np.inf]
        loss, moving, sent = user_gradients(
            state.vectors[index], state.shared, chunks, settings, margins
        )
        if min(margins) <= near:
            taking[index] = False
            continue
        losses[index] = loss / len(chunks)
        vectors[index], own_moments[index] = own_moments[index].step(
            vectors[index], moving, settings.user_rate
        )
        each.append(sent)
        for name, value in sent.items():
            sums[name] += value
    shared, moments = {}, {}
    for name, value in state.shared.items():
        mean = sums[name] / taking.sum()
        shared[name], moments[name] = state.moments[name].step(value, mean, settings.rate)
    after = replace(state, shared=shared, moments=moments, vectors=vectors, own_moments=own_moments)
    return Round(gradients=sums, each=each, taking=taking, loss=losses, after=after)
