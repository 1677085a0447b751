"""Sending a copy of the model for clients that join late."""

from __future__ import annotations

from fedrec.errors import RoundError
from fedrec.wire.link import Link
from fedrec.wire.messages import MakeSnapshot, RevealStatement
from fedrec_client.local_model import LocalModel
from fedrec_client.membership import Membership
from fedrec_client.private_store import PrivateStore
from fedrec_client.round_journal import RoundJournal

__all__ = ["send_snapshot"]


def send_snapshot(
    task: MakeSnapshot,
    *,
    membership: Membership,
    link: Link,
    model: LocalModel,
    store: PrivateStore,
    journal: RoundJournal,
) -> None:
    """Send the model of a round, sealed where the protection hides it.

    Raises:
        RoundError: this client does not have that version, or does not know what was signed
            about it.
    """
    content = store.state.content
    if task.round != model.version or content is None:
        raise RoundError(
            f"A snapshot of round {task.round} was asked for; this client has {model.version}."
        )
    statement = RevealStatement(
        federation=membership.federation,
        run=membership.run,
        round=task.round,
        epoch=membership.epoch,
        client_id=membership.client_id,
        **content.model_dump(),
    )
    blob = model.shared.to_bytes()
    if membership.is_encrypted:
        blob = membership.seal_of(task.round, "train").seal_snapshot(blob)
    link.submit_snapshot(membership.sign_statement(statement), blob)
    journal.tell("snapshot_sent", task.round)
