"""Parsers of what travels between clients, the key authority and the coordinator."""

from __future__ import annotations

from typing import Any

from common.wire.conftest import Values
from fuzz.target import Target, from_proto

from fedrec.ids import ClientId, RoundId
from fedrec.protection.masks import (
    GivenShares,
    Inbox,
    KeyAdvertisement,
    KeyList,
    ShareBundle,
    messages,
)
from fedrec.wire import admin_link, convert
from fedrec.wire.chunks import Assembler, Blob
from fedrec.wire.convert import (
    TASK,
)
from fedrec.wire.messages import (
    Application,
    Finished,
    Latest,
    MakeSnapshot,
    Remembered,
    Reveal,
    StepMessage,
    StepTask,
    Task,
    Train,
    UploadStatus,
    Wait,
)
from fedrec.wire.v1 import admin_pb2, coordinator_pb2, masks_pb2, model_pb2, update_pb2

VALUES = Values()
OTHER = ClientId("cd" * 32)


def _written(*messages: Any) -> tuple[bytes, ...]:
    return tuple(message.SerializeToString(deterministic=True) for message in messages)


def _tasks() -> tuple[bytes, ...]:
    one, header = RoundId(3), VALUES.header()
    reveal = Reveal(
        round=one,
        kind="train",
        base_round=RoundId(2),
        contributions=(header, VALUES.header(client_id=OTHER)),
        sum=Blob(length=5, digest=b"h" * 32),
        epoch=2,
    )
    train = Train(round=one, kind="count", base_round=RoundId(2), seconds_left=1.5, epoch=2)
    kinds = (
        Wait(reason="nothing"),
        train,
        StepTask(round=one, step="shares", epoch=2),
        reveal,
        MakeSnapshot(round=one),
        Finished(reason="over", failed=True),
    )
    latest = Latest(header=header)
    return _written(
        *(
            TASK.to_proto(Task(published_round=one, task=kind, epoch=2, latest=latest))
            for kind in kinds
        )
    )


def _requests() -> tuple[bytes, ...]:
    request = coordinator_pb2.NextTaskRequest(client_id=VALUES.client, run="run-1", version=2)
    remembered = Remembered(
        acknowledged_round=RoundId(3), acknowledged_digest=b"d" * 32, statement=VALUES.statement()
    )
    return _written(request, convert.REMEMBERED.to_proto(remembered))


def _chunks() -> tuple[bytes, ...]:
    """Return an upload: its announcement and its pieces, each behind its length."""
    payload = bytes(range(200))
    blob = convert.BLOB.to_proto(Blob.of(payload)).SerializeToString()
    pieces = [
        update_pb2.Chunk(offset=start, data=payload[start : start + 80]).SerializeToString()
        for start in range(0, 200, 80)
    ]
    return (b"".join(bytes([len(part)]) + part for part in (blob, *pieces)),)


def _assembled(data: bytes) -> bytes:
    parts = []
    while data:
        length, data = data[0], data[1:]
        parts.append(data[:length])
        data = data[length:]
    announced: list[Blob] = []
    read_blob = from_proto(
        update_pb2.BlobHeader, lambda message: convert.BLOB.from_proto(message, "blob")
    )
    read_chunk = from_proto(update_pb2.Chunk, lambda chunk: (chunk.offset, chunk.data))
    blob = read_blob(parts[0]) if parts else None
    if isinstance(blob, Blob):
        announced.append(blob)
    if not announced:
        return b""
    assembler = Assembler(announced[0].length, announced[0].digest, max_bytes=1 << 20)
    for part in parts[1:]:
        chunk = read_chunk(part)
        if isinstance(chunk, tuple):
            assembler.add(*chunk)
    return assembler.finish()


def _keys(client: ClientId, mark: int) -> KeyAdvertisement:
    return KeyAdvertisement(
        client_id=client,
        mask_key=bytes([mark]) * 32,
        share_key=bytes([mark + 100]) * 32,
        signature=bytes([mark]) * 64,
    )


FIRST, SECOND = _keys(VALUES.client, 1), _keys(OTHER, 2)
BUNDLE = ShareBundle(holders=(0, 2, 5), sealed=(b"s" * 82,) * 3, commitment=b"c" * 32)
GIVEN = GivenShares(
    self_owners=(0, 3), self_shares=(b"s" * 33,) * 2, key_owners=(4,), key_shares=(b"k" * 33,)
)
MASKED = StepMessage(
    federation="movies",
    run="run-1",
    round=RoundId(3),
    epoch=2,
    client_id=VALUES.client,
    step="keys",
    body=messages.keys_to_bytes(FIRST, b"b" * 32),
    signature=b"s" * 64,
)
MESSAGES = {
    "upload header": Target(
        read=from_proto(update_pb2.UploadHeader, convert.UPLOAD_HEADER.from_proto),
        seeds=_written(convert.UPLOAD_HEADER.to_proto(VALUES.header())),
    ),
    "statement": Target(
        read=from_proto(model_pb2.RevealStatement, convert.STATEMENT.from_proto),
        seeds=_written(convert.STATEMENT.to_proto(VALUES.statement())),
    ),
    "report": Target(
        read=from_proto(model_pb2.Report, convert.REPORT.from_proto),
        seeds=_written(convert.REPORT.to_proto(VALUES.report())),
    ),
    "federation": Target(
        read=from_proto(coordinator_pb2.Federation, convert.FEDERATION.from_proto),
        seeds=_written(convert.FEDERATION.to_proto(VALUES.federation())),
    ),
    "upload status": Target(
        read=from_proto(coordinator_pb2.UploadStatus, convert.UPLOAD_STATUS.from_proto),
        seeds=_written(convert.UPLOAD_STATUS.to_proto(UploadStatus(offset=3, accepted=False))),
    ),
    "published round": Target(
        read=from_proto(
            model_pb2.Published, lambda message: convert.PUBLISHED.from_proto(message, blob=b"blob")
        ),
        seeds=_written(convert.PUBLISHED.to_proto(VALUES.published())),
    ),
    "snapshot": Target(
        read=from_proto(
            model_pb2.Snapshot, lambda message: convert.SNAPSHOT.from_proto(message, blob=b"blob")
        ),
        seeds=_written(convert.SNAPSHOT.to_proto(VALUES.snapshot())),
    ),
    "answer to an applicant": Target(
        read=from_proto(coordinator_pb2.Application, convert.APPLICATION.from_proto),
        seeds=_written(
            convert.APPLICATION.to_proto(Application(epoch=2, listed=True, certificate=b"pem"))
        ),
    ),
    "task": Target(read=from_proto(coordinator_pb2.Task, TASK.from_proto), seeds=_tasks()),
    "request for a task": Target(
        read=from_proto(coordinator_pb2.NextTaskRequest, convert.REMEMBERED.from_proto),
        seeds=_requests(),
    ),
    "event": Target(
        read=from_proto(admin_pb2.Event, admin_link._event),
        seeds=_written(admin_pb2.Event(sequence=3, kind="round opened", fields_json='{"a":[1]}')),
    ),
    "chunks": Target(read=_assembled, seeds=_chunks()),
    "message under masks": Target(
        read=from_proto(masks_pb2.MaskMessage, convert.STEP_MESSAGE.from_proto),
        seeds=_written(convert.STEP_MESSAGE.to_proto(MASKED)),
    ),
    "mask keys": Target(
        read=lambda data: messages.keys_from_bytes(VALUES.client, data), seeds=(MASKED.body,)
    ),
    "mask shares": Target(
        read=messages.BUNDLE.from_bytes, seeds=(messages.BUNDLE.to_bytes(BUNDLE),)
    ),
    "mask answer": Target(read=messages.GIVEN.from_bytes, seeds=(messages.GIVEN.to_bytes(GIVEN),)),
    "mask key list": Target(
        read=messages.key_list_from_bytes,
        seeds=(messages.KEY_LIST.to_bytes(KeyList.of([FIRST, SECOND])),),
    ),
    "mask inbox": Target(
        read=messages.INBOX.from_bytes,
        seeds=(
            messages.INBOX.to_bytes(Inbox(shared=b"\x07", owners=(0, 2), sealed=(b"s" * 82,) * 2)),
        ),
    ),
    "mask signatures": Target(
        read=messages.signatures_from_bytes,
        seeds=(messages.signatures_to_bytes({0: b"a" * 64, 7: b"b" * 64}),),
    ),
}
"""By name, each parser of a message."""
