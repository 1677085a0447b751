"""The price of a run before it starts: bytes per client and round, and in all."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.algorithms import ALGORITHMS
from fedrec.config.schema import Plan
from fedrec.errors import SettingsError
from fedrec.identity.sealing import SEAL_OVERHEAD_BYTES
from fedrec.protection import PROTECTIONS, ProtectionPlan
from fedrec.training.layout import dense_values, vector_spec
from fedrec.updates import UPDATES, PaperNumbers

__all__ = ["Price", "price", "warnings_for"]

FLOAT_BYTES = 4
KEY_HOLDERS = 2
# Before training every client sends its counts, after it one round only measures.
ROUNDS_BESIDE_TRAINING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a run costs.

    Attributes:
        protection: the parameters that the planner chose.
        n_items: size of the catalogue.
        n_clients: clients in a round, as assumed.
        n_rounds: rounds of a run that abandons none.
        is_encrypted: whether key holders reveal each round.
        upload_bytes: of one client in one round.
        download_bytes: of a client that neither reveals nor verifies, in one round.
        holder_download_bytes: what the revealer and the verifier fetch besides.
        total_bytes: of all clients in both directions over the whole run.
        dense_plain_bytes: an upload of the full item table in float32.
        dense_paper_bytes: an upload of the same under the papers' CKKS set; 0 where it cannot.
        paper_numbers: the size of a message as the CoLR paper counts it; None where it does not.
        paper_link_minutes: how long the paper's link takes for all training rounds.
    """

    protection: ProtectionPlan
    n_items: int
    n_clients: int
    n_rounds: int
    is_encrypted: bool
    upload_bytes: int
    download_bytes: int
    holder_download_bytes: int
    total_bytes: int
    dense_plain_bytes: int
    dense_paper_bytes: int
    paper_numbers: PaperNumbers | None
    paper_link_minutes: float | None


def price(plan: Plan, *, n_items: int, n_clients: int = 0) -> Price:
    """Return what a run of this plan costs.

    Args:
        plan: the shared settings.
        n_items: size of the catalogue.
        n_clients: clients in each round; by default as many as the plan asks for.

    Raises:
        SettingsError: when the protection cannot sum what the plan asks for.
    """
    spec = vector_spec(plan, n_items)
    kind = PROTECTIONS[plan.protection.name]
    chosen = kind.plan(spec, preset=plan.protection.preset)
    n_clients = n_clients or plan.rounds.clients_per_round or plan.rounds.minimum_clients
    n_rounds = plan.rounds.total + ROUNDS_BESIDE_TRAINING
    upload = chosen.message_bytes
    download = PROTECTIONS["none"].plan(spec).message_bytes
    holder = 0
    if kind.needs_reveal:
        download += SEAL_OVERHEAD_BYTES
        # A key holder has its own contribution already.
        holder = (n_clients - 1) * upload
    paper = ALGORITHMS[plan.algorithm.name](plan, n_items).paper_numbers()
    per_round = n_clients * (upload + download) + KEY_HOLDERS * holder
    return Price(
        protection=chosen,
        n_items=n_items,
        n_clients=n_clients,
        n_rounds=n_rounds,
        is_encrypted=kind.needs_reveal,
        upload_bytes=upload,
        download_bytes=download,
        holder_download_bytes=holder,
        total_bytes=n_rounds * per_round,
        dense_plain_bytes=FLOAT_BYTES * dense_values(plan, n_items),
        dense_paper_bytes=_dense_paper_bytes(plan, n_items),
        paper_numbers=paper,
        paper_link_minutes=paper.link_minutes(plan.rounds.total) if paper else None,
    )


def _dense_paper_bytes(plan: Plan, n_items: int) -> int:
    dense = plan.model_copy(
        update={"update": plan.update.model_copy(update={"structure": "dense"})}
    )
    try:
        return PROTECTIONS["ckks"].plan(vector_spec(dense, n_items), preset="paper").message_bytes
    except SettingsError:
        return 0


def warnings_for(plan: Plan) -> list[str]:
    """Return what somebody who trusts these settings should know."""
    found = UPDATES[plan.update.structure].warnings(plan.update)
    if PROTECTIONS[plan.protection.name].needs_reveal:
        found += [
            "All clients of a round but one can compute the last one's update, by taking their "
            f"own from the sum: with {plan.rounds.minimum_clients} clients, "
            f"{plan.rounds.minimum_clients - 1} must collude.",
            "All clients hold the same secret key: one that colludes with the coordinator opens "
            "every update.",
        ]
    else:
        found.append(
            'protection.name = "none": the coordinator reads every client\'s update. Use "bfv" '
            "for anything but trials."
        )
    if plan.evaluation.protocol == "paper":
        found.append(
            'evaluation.protocol = "paper" leaks the held-out items through the negatives: a '
            "scorer that learns nothing reaches HR@10 of 1.00 on ML-100K. Use it to reproduce "
            'published tables only; "full" measures.'
        )
    if plan.federation.minimum_item_users == 1:
        found.append(
            "federation.minimum_item_users = 1: the row of an item that one user holds is that "
            "user's data, readable by every client. Set it to 10."
        )
    return found
