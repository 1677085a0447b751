"""A task, the answer to a long poll, and a round's steps, to protocol buffers and back."""

from __future__ import annotations

from fedrec.errors import ProtocolError
from fedrec.wire.convert import (
    blob_from_proto,
    contributions_from_proto,
    reveal_statement_from_proto,
    reveal_statement_to_proto,
    upload_header_from_proto,
    upload_header_to_proto,
)
from fedrec.wire.limits import (
    MAX_REASON_CHARS,
    MAX_STEP_BYTES,
    check_bytes,
    check_client_id,
    check_exact,
    check_kind,
    check_number,
    check_round,
    check_seconds,
    check_step,
    check_text,
)
from fedrec.wire.messages import (
    Finished,
    Latest,
    MakeSnapshot,
    Remembered,
    Reveal,
    StepMessage,
    StepTask,
    Task,
    Train,
    Wait,
)
from fedrec.wire.v1 import coordinator_pb2, masks_pb2, update_pb2

__all__ = [
    "remembered_from_proto",
    "remembered_to_proto",
    "step_message_from_proto",
    "step_message_to_proto",
    "task_from_proto",
    "task_to_proto",
]

SIGNATURE_BYTES = 64


def step_message_to_proto(message: StepMessage) -> masks_pb2.MaskMessage:
    """Write a client's message of one step."""
    return masks_pb2.MaskMessage(
        federation=message.federation,
        run=message.run,
        round=message.round,
        epoch=message.epoch,
        client_id=message.client_id,
        step=message.step,
        body=message.body,
        signature=message.signature,
    )


def step_message_from_proto(message: masks_pb2.MaskMessage) -> StepMessage:
    """Read a client's message of one step; the signature is not verified."""
    return StepMessage(
        federation=check_text(message.federation, "masks.federation"),
        run=check_text(message.run, "masks.run"),
        round=check_round(message.round, "masks.round"),
        epoch=check_number(message.epoch, "masks.epoch"),
        client_id=check_client_id(message.client_id, "masks.client_id"),
        step=check_step(message.step, "masks.step"),
        body=check_bytes(message.body, "masks.body", max_bytes=MAX_STEP_BYTES),
        signature=check_exact(message.signature, "masks.signature", SIGNATURE_BYTES),
    )


def remembered_to_proto(
    remembered: Remembered, request: coordinator_pb2.NextTaskRequest
) -> coordinator_pb2.NextTaskRequest:
    """Write into a long poll what the client remembers; return it."""
    request.acknowledged_round = remembered.round
    request.acknowledged_digest = remembered.digest
    if remembered.statement is not None:
        request.statement.CopyFrom(reveal_statement_to_proto(remembered.statement))
    if remembered.header is not None:
        request.header.CopyFrom(upload_header_to_proto(remembered.header))
    return request


def remembered_from_proto(request: coordinator_pb2.NextTaskRequest) -> Remembered:
    """Read what a client remembers; the statement's signature is not verified."""
    statement, header = None, None
    if request.HasField("statement"):
        statement = reveal_statement_from_proto(request.statement)
    if request.HasField("header"):
        header = upload_header_from_proto(request.header)
    return Remembered(
        round=check_round(request.acknowledged_round, "request.acknowledged_round"),
        digest=check_exact(request.acknowledged_digest, "request.acknowledged_digest", 0, 32),
        statement=statement,
        header=header,
    )


def task_to_proto(task: Task) -> coordinator_pb2.Task:
    """Write the answer to a long poll; a reason is cut to what a client accepts."""
    message = coordinator_pb2.Task(published_round=task.published_round, epoch=task.epoch)
    if task.latest is not None:
        message.latest.SetInParent()
        if task.latest.header is not None:
            message.latest.header.CopyFrom(upload_header_to_proto(task.latest.header))
    match task.task:
        case Wait(reason=reason, about=about):
            wait = coordinator_pb2.Wait(reason=_one_line(reason), about=about)
            message.wait.CopyFrom(wait)
        case Train() as train:
            message.train.CopyFrom(
                coordinator_pb2.Train(
                    round=train.round,
                    kind=train.kind,
                    base_round=train.base_round,
                    seconds_left=train.seconds_left,
                    epoch=train.epoch,
                )
            )
        case StepTask(round=round_id, step=step, epoch=epoch):
            message.masks.CopyFrom(masks_pb2.MaskTask(round=round_id, step=step, epoch=epoch))
        case Reveal() as reveal:
            message.reveal.CopyFrom(
                coordinator_pb2.Reveal(
                    round=reveal.round,
                    kind=reveal.kind,
                    base_round=reveal.base_round,
                    contributions=[upload_header_to_proto(h) for h in reveal.contributions],
                    sum=update_pb2.BlobHeader(length=reveal.sum_length, digest=reveal.sum_digest),
                    epoch=reveal.epoch,
                )
            )
        case MakeSnapshot(round=round_id):
            message.make_snapshot.CopyFrom(coordinator_pb2.MakeSnapshot(round=round_id))
        case Finished(reason=reason, failed=failed):
            message.finished.CopyFrom(
                coordinator_pb2.Finished(reason=_one_line(reason), failed=failed)
            )
    return message


def task_from_proto(message: coordinator_pb2.Task) -> Task:
    """Read the answer to a long poll."""
    return Task(
        published_round=check_round(message.published_round, "task.published_round"),
        task=_task(message),
        epoch=check_number(message.epoch, "task.epoch"),
        latest=_latest(message.latest) if message.HasField("latest") else None,
    )


def _latest(message: coordinator_pb2.Latest) -> Latest:
    known = message.HasField("header")
    return Latest(header=upload_header_from_proto(message.header) if known else None)


def _task(
    message: coordinator_pb2.Task,
) -> Wait | Train | StepTask | Reveal | MakeSnapshot | Finished:
    match message.WhichOneof("task"):
        case "wait":
            return Wait(
                reason=_reason(message.wait.reason, "wait.reason"),
                about=check_round(message.wait.about, "wait.about"),
            )
        case "train":
            train = message.train
            return Train(
                round=check_round(train.round, "train.round"),
                kind=check_kind(train.kind, "train.kind"),
                base_round=check_round(train.base_round, "train.base_round"),
                seconds_left=check_seconds(train.seconds_left, "train.seconds_left"),
                epoch=check_number(train.epoch, "train.epoch"),
            )
        case "masks":
            return StepTask(
                round=check_round(message.masks.round, "masks.round"),
                step=check_step(message.masks.step, "masks.step"),
                epoch=check_number(message.masks.epoch, "masks.epoch"),
            )
        case "reveal":
            return _reveal(message.reveal)
        case "make_snapshot":
            return MakeSnapshot(
                round=check_round(message.make_snapshot.round, "make_snapshot.round")
            )
        case "finished":
            reason = _reason(message.finished.reason, "finished.reason")
            return Finished(reason=reason, failed=message.finished.failed)
        case _:
            raise ProtocolError("The task is of a kind that this version does not know.")


def _reveal(message: coordinator_pb2.Reveal) -> Reveal:
    blob = blob_from_proto(message.sum, "reveal.sum")
    return Reveal(
        round=check_round(message.round, "reveal.round"),
        kind=check_kind(message.kind, "reveal.kind"),
        base_round=check_round(message.base_round, "reveal.base_round"),
        contributions=contributions_from_proto(message.contributions, "reveal.contributions"),
        sum_length=blob.length,
        sum_digest=blob.digest,
        epoch=check_number(message.epoch, "reveal.epoch"),
    )


def _reason(value: str, field: str) -> str:
    return check_text(value, field, max_chars=MAX_REASON_CHARS, empty=True)


def _one_line(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason[:MAX_REASON_CHARS])
