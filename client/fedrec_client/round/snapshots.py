"""Sending a copy of the model for clients that join late."""

from __future__ import annotations

from fedrec.errors import RoundError
from fedrec.wire.link import Link
from fedrec.wire.messages import MakeSnapshot
from fedrec_client.membership.membership import Membership
from fedrec_client.round.local_model import SharedModel
from fedrec_client.state.round_journal import RoundJournal

__all__ = ["send_snapshot"]


def send_snapshot(
    task: MakeSnapshot,
    *,
    membership: Membership,
    link: Link,
    model: SharedModel,
    journal: RoundJournal,
) -> None:
    """Send the model of a round, sealed where the protection hides it, and say that one has it.

    Raises:
        RoundError: this client does not have that version.
    """
    if task.round != model.version or task.round == 0:
        raise RoundError(
            f"A snapshot of round {task.round} was asked for; this client has {model.version}."
        )
    rows = model.rows_after(membership, model.shared)
    blob = model.stored(model.shared)
    if membership.is_encrypted:
        blob = membership.seal_of(task.round).seal_snapshot(blob)
    link.submit_snapshot(membership.report_on(task.round, model.shared, rows), blob)
    journal.tell("snapshot_sent", task.round)
