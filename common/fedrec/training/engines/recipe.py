"""An algorithm as a worker process can make it again: its class by name, settings, shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from operator import attrgetter
from typing import Any

from fedrec.algorithms.algorithm import Algorithm
from fedrec.algorithms.declarations import Shapes, SumNoise
from fedrec.updates.settings import UpdateSettings

__all__ = ["algorithm_from", "can_be_made_again", "recipe_of"]


def can_be_made_again(algorithm: Algorithm) -> bool:
    """Return whether another process can import the class: not what a notebook's cell says."""
    kind = type(algorithm)
    return kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__


def recipe_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return what `algorithm_from` needs, as JSON."""
    return {
        "module": type(algorithm).__module__,
        "name": type(algorithm).__qualname__,
        "settings": algorithm.settings.model_dump(mode="json"),
        "n_items": algorithm.n_items,
        "seed": algorithm.seed,
        "update": algorithm.update.model_dump(mode="json"),
        "n_rounds": algorithm.n_rounds,
        "minimum_item_users": algorithm.minimum_item_users,
        "noise": None if algorithm.noise is None else asdict(algorithm.noise),
    }


def algorithm_from(recipe: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm like the one that a recipe was made of."""
    kind: type[Algorithm] = attrgetter(recipe["name"])(import_module(recipe["module"]))
    shapes = Shapes(
        n_items=recipe["n_items"],
        seed=recipe["seed"],
        update=UpdateSettings.model_validate(recipe["update"]),
        n_rounds=recipe["n_rounds"],
        minimum_item_users=recipe["minimum_item_users"],
        noise=None if recipe["noise"] is None else SumNoise(**recipe["noise"]),
    )
    return kind(kind.settings_type.model_validate(recipe["settings"]), shapes)
