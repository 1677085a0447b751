"""A published row: figures of a paper, and the plan that should give them."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.algorithms import AlgorithmSettings
from fedrec.plan.schema import EvaluationSettings, FederationSettings, Plan, RoundSettings
from fedrec.protection import ProtectionSettings
from fedrec.updates.update import UpdateSettings

_FEWEST_INTERACTIONS = {"FedRecGEL": 5, "PFedCLR": 10}
"""By paper: users with fewer distinct items are omitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One line of a paper's result table.

    Attributes:
        name: algorithm, data set and other distinguishing parts, separated by slashes.
        dataset: a key of `fedrec.data.PUBLIC`.
        minimum_interactions: users with fewer distinct items are omitted, as in the paper.
        hr: HR@10 as printed, as a share.
        ndcg: NDCG@10 as printed, as a share.
        source: paper and table.
        note: choices and differences that a reader of the comparison must know.
        plan: the settings. Protocol and seed are set at the start of a run.
        minutes: rough time for one protocol and seed on one processor core.
    """

    name: str
    dataset: str
    minimum_interactions: int = 1
    hr: float
    ndcg: float
    source: str
    note: str = ""
    plan: Plan
    minutes: float


def published_row(
    name: str,
    figures: tuple[float, float],
    source: str,
    plan: Plan,
    *,
    minutes: float,
    note: str = "",
) -> PublishedRow:
    """Return a line of a paper's table.

    Its name contains the data set, and its paper sets the users.

    Args:
        figures: HR@10 and NDCG@10 as printed.
    """
    return PublishedRow(
        name=name,
        dataset=name.split("/")[1],
        minimum_interactions=_FEWEST_INTERACTIONS.get(source.partition(",")[0], 1),
        hr=figures[0],
        ndcg=figures[1],
        source=source,
        note=note,
        plan=plan,
        minutes=minutes,
    )


def paper_plan(
    algorithm: AlgorithmSettings,
    update: UpdateSettings,
    *,
    rounds: int,
    every_rounds: int = 1,
    user_fraction: float = 1.0,
    counted: bool = False,
) -> Plan:
    """Return a plan in which every item is trained and nothing is encrypted.

    Args:
        rounds: training rounds.
        every_rounds: the model is measured in every n-th round.
        user_fraction: share of the users in a round.
        counted: whether exactly that share is drawn, as in most papers. Otherwise a coin is tossed
            for each user.
    """
    return Plan(
        federation=FederationSettings(minimum_item_users=1),
        algorithm=algorithm,
        update=update,
        protection=ProtectionSettings(name="none"),
        evaluation=EvaluationSettings(protocol="paper", every_rounds=every_rounds),
        rounds=RoundSettings(
            total=rounds,
            user_fraction=user_fraction,
            user_sampling="count" if counted else "coin",
        ),
    )
