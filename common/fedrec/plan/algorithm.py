"""The algorithm of a plan: its class, the instance for a catalogue, and its warnings."""

from __future__ import annotations

from dataclasses import replace

from fedrec.algorithms import (
    ALGORITHMS,
    About,
    Algorithm,
    Circumstances,
    Shapes,
    WrapperSettings,
)
from fedrec.algorithms.accelerators import Accelerator, accelerator_for
from fedrec.algorithms.declarations import SumNoise
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.trained import TRAINER_VERSION
from fedrec.plan.planned_noise import mechanism_of
from fedrec.plan.schema import Plan


def algorithm_type(plan: Plan) -> type[Algorithm]:
    """Return the algorithm class that a plan names."""
    return ALGORITHMS[plan.algorithm.name]


def algorithm_of(plan: Plan, n_items: int) -> Algorithm:
    """Return a plan's algorithm for a catalogue of this size.

    Raises:
        SettingsError: the algorithm does not support this number of items.
    """
    shapes = Shapes(
        n_items=n_items,
        seed=plan.federation.seed,
        update=plan.update,
        n_rounds=plan.rounds.total,
        minimum_item_users=plan.federation.minimum_item_users,
        noise=noise_of(plan),
    )
    return algorithm_type(plan)(plan.algorithm, shapes)


def noise_of(plan: Plan) -> SumNoise | None:
    """Return the noise on a plan's sums in the model's units, or None if they are exact."""
    mechanism = mechanism_of(plan)
    if mechanism is None:
        return None
    step = plan.update.clip * 2.0**-plan.update.fraction_bits
    return SumNoise(
        clip=plan.privacy.clip,
        step=step,
        deviation=mechanism.deviation * step,
        users=mechanism.divisor,
    )


def accelerator_of(plan: Plan) -> Accelerator | None:
    """Return the compiled code that trains a plan's users on a CPU, or None for the trainer.

    It follows from the plan alone, never from load, size or installed packages. Noise needs the
    change of each user, which compiled code does not return.
    """
    if not plan.training.accelerated or plan.privacy.mechanism != "none":
        return None
    algorithm = algorithm_of(plan, 1)
    return None if algorithm.upload_noise else accelerator_for(algorithm)


def training_path(plan: Plan, trainer: int = TRAINER_VERSION) -> str:
    """Return the training path on a CPU with its version.

    Different paths give different bits.

    Args:
        trainer: the trainer's version, of the release that signs the plan.
    """
    accelerator = accelerator_of(plan)
    if accelerator is not None:
        return f"{plan.algorithm.name} accelerator {accelerator.version}"
    kind = algorithm_type(plan)
    # A former release has its trainer's version alone, so that its runs are recognised.
    if trainer == TRAINER_VERSION and issubclass(kind, ExactAlgorithm) and kind.sums_version > 1:
        return f"{plan.algorithm.name} {kind.sums_version}"
    return f"trainer {trainer}"


def about_algorithm(plan: Plan) -> About:
    """Return the facts about a plan's algorithm and its valid combinations.

    Around a base whose server makes a model for each user, the facts about what the server sees are
    those of the base.
    """
    about, base = algorithm_type(plan).about, base_type(plan)
    if base is None or base.personalise is Algorithm.personalise:
        return about
    return replace(
        about,
        supports=replace(
            about.supports,
            protections=base.about.supports.protections,
            reason=base.about.supports.reason,
        ),
        not_under_noise=base.about.not_under_noise,
        exposes=replace(about.exposes, in_the_clear=base.about.exposes.in_the_clear),
        modules=base.about.modules,
    )


def base_type(plan: Plan) -> type[Algorithm] | None:
    """Return the class of the algorithm inside a wrapper, or None for all others."""
    settings = plan.algorithm
    return ALGORITHMS[settings.base.name] if isinstance(settings, WrapperSettings) else None


def divides_by_count(plan: Plan) -> bool:
    """Return whether training rounds are divided by the result of the last count round.

    Such rounds must cover exactly the users of the count. If some drop out, the others count again.
    Under noise there is no count.
    """
    return issubclass(algorithm_type(plan), ExactAlgorithm) and plan.privacy.mechanism == "none"


def algorithm_warnings(plan: Plan, n_items: int = 0, n_held: int = 0) -> list[str]:
    """Return warnings for a person that chooses a plan's algorithm.

    Args:
        n_items: size of the catalogue, or 0 if unknown.
        n_held: items that enough users hold, or 0 if unknown.
    """
    return about_algorithm(plan).advice.warnings(
        Circumstances(
            settings=plan.algorithm,
            update=plan.update,
            n_items=n_items,
            n_held=n_held,
            n_rounds=plan.rounds.total,
            minimum_item_users=plan.federation.minimum_item_users,
            minimum_clients=plan.rounds.minimum_clients,
            noise=noise_of(plan),
        )
    )
