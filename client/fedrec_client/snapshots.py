"""Sending a copy of the model for clients that join late."""

from __future__ import annotations

from fedrec.errors import RoundError
from fedrec.wire.link import Link
from fedrec.wire.messages import UNSAID, MakeSnapshot, RevealStatement
from fedrec_client.local_model import SharedModel
from fedrec_client.membership import Membership
from fedrec_client.private_store import PrivateStore
from fedrec_client.round_journal import RoundJournal
from fedrec_client.stored_state import RoundContent

__all__ = ["send_snapshot"]


def send_snapshot(
    task: MakeSnapshot,
    *,
    membership: Membership,
    link: Link,
    model: SharedModel,
    store: PrivateStore,
    journal: RoundJournal,
) -> None:
    """Send the model of a round, sealed where the protection hides it.

    Where this client does not know what was signed about the round in this epoch, because it
    was published in an earlier one, it attests the model that it has itself.

    Raises:
        RoundError: this client does not have that version.
    """
    if task.round != model.version or task.round == 0:
        raise RoundError(
            f"A snapshot of round {task.round} was asked for; this client has {model.version}."
        )
    rows = model.rows_after(membership, model.shared)
    content = store.state.content or RoundContent(
        manifest_digest=UNSAID,
        aggregate_tag=UNSAID,
        state_tag=membership.seal_of(task.round, "train").state_tag(model.shared.canonical_bytes()),
        published_digest=UNSAID,
        locked_metrics=b"",
        n_rows=rows.n_rows,
        rows_digest=rows.digest,
    )
    statement = RevealStatement(
        federation=membership.federation,
        run=membership.run,
        round=task.round,
        epoch=membership.epoch,
        client_id=membership.client_id,
        **content.model_dump(),
    )
    blob = model.stored(model.shared)
    if membership.is_encrypted:
        blob = membership.seal_of(task.round, "train").seal_snapshot(blob)
    link.submit_snapshot(membership.sign_statement(statement), blob)
    journal.tell("snapshot_sent", task.round)
