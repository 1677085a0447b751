"""The settings of FedNCF and what does not go together among them; see `fedncf`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedrec.algorithms.sampled import SampledSettings

__all__ = ["FedNCFSettings", "problem_of", "warnings_of"]

_LARGEST_USUAL_ADAM_RATE = 0.02


class FedNCFSettings(SampledSettings):
    """FedNCF: a shared network scores user and item vectors."""

    name: Literal["fedncf"] = Field(default="fedncf", description="Which algorithm trains.")
    dim: int = Field(default=32, ge=1, le=512, description="Length of an embedding vector.")
    learning_rate: float = Field(
        default=0.1, gt=0, le=1000, description="Step size (eta) of the network."
    )
    optimiser: Literal["sgd", "adam"] = Field(
        default="sgd",
        description="adam moves users, rows and network by eta alike, 0.001 as a rule.",
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="L2 coefficient on a user's vector, touched rows and network; 0 as published.",
    )
    user_rate_scale: float = Field(
        default=80.0, gt=0, le=1e6, description="Users are trained with eta x this (sgd)."
    )
    item_rate_scale: float = Field(
        default=80.0,
        gt=0,
        le=1e6,
        description="Item rows are trained with eta x items of the catalogue x this (sgd).",
    )
    batch_size: int = Field(default=256, ge=1, le=8192, description="Samples in a minibatch.")
    aggregation: Literal["mf_secavg", "plain"] = Field(
        default="mf_secavg",
        description="mf_secavg divides rows by the users who touched them and weights networks "
        "by training items; plain is the uniform mean of everything.",
    )
    network_clip: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Like update.clip, for the network; under mf_secavg after weighting.",
    )


def problem_of(settings: FedNCFSettings) -> tuple[tuple[str, ...], str] | None:
    """Refuse decay where whole tables are averaged; see `About.contradiction`."""
    if not settings.weight_decay or settings.aggregation == "mf_secavg":
        return None
    return (
        ("algorithm.weight_decay", "algorithm.aggregation"),
        f"algorithm.weight_decay is {settings.weight_decay:g} with aggregation = "
        '"plain", under which it would move every row of every user. Set weight_decay = 0 or '
        'aggregation = "mf_secavg".',
    )


def warnings_of(settings: FedNCFSettings) -> list[str]:
    """Say what Adam makes no use of, and when its steps are large."""
    if settings.optimiser == "sgd":
        return []
    found = []
    fields = type(settings).model_fields
    unused = [
        f"algorithm.{name}"
        for name in ("user_rate_scale", "item_rate_scale")
        if getattr(settings, name) != fields[name].default
    ]
    if unused:
        found.append(f"{' and '.join(unused)} is for sgd; adam moves everything by eta.")
    if settings.learning_rate > _LARGEST_USUAL_ADAM_RATE:
        found.append(
            f"algorithm.learning_rate is {settings.learning_rate:g}; adam moves every value by "
            "about that much in each minibatch. 0.001 is usual."
        )
    return found
