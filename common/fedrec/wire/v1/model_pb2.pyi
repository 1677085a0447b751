from fedrec.wire.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RevealStatement(_message.Message):
    __slots__ = ("federation", "run", "round", "epoch", "client_id", "manifest_digest", "state_tag", "published_digest", "metrics", "n_rows", "rows_digest", "refused", "signature", "paused", "sequence", "previous", "kind", "trained", "charged")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_TAG_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    N_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    federation: str
    run: str
    round: int
    epoch: int
    client_id: str
    manifest_digest: bytes
    state_tag: bytes
    published_digest: bytes
    metrics: bytes
    n_rows: int
    rows_digest: bytes
    refused: str
    signature: bytes
    paused: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    previous: bytes
    kind: str
    trained: int
    charged: int
    def __init__(self, federation: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ..., state_tag: _Optional[bytes] = ..., published_digest: _Optional[bytes] = ..., metrics: _Optional[bytes] = ..., n_rows: _Optional[int] = ..., rows_digest: _Optional[bytes] = ..., refused: _Optional[str] = ..., signature: _Optional[bytes] = ..., paused: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ..., previous: _Optional[bytes] = ..., kind: _Optional[str] = ..., trained: _Optional[int] = ..., charged: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("federation", "run", "round", "epoch", "client_id", "state_tag", "metrics", "n_rows", "rows_digest", "signature")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_TAG_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    N_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    federation: str
    run: str
    round: int
    epoch: int
    client_id: str
    state_tag: bytes
    metrics: bytes
    n_rows: int
    rows_digest: bytes
    signature: bytes
    def __init__(self, federation: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., state_tag: _Optional[bytes] = ..., metrics: _Optional[bytes] = ..., n_rows: _Optional[int] = ..., rows_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RevealPart(_message.Message):
    __slots__ = ("statement", "blob", "chunk")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    statement: RevealStatement
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, statement: _Optional[_Union[RevealStatement, _Mapping]] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ReportPart(_message.Message):
    __slots__ = ("report", "blob", "chunk")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    report: Report
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, report: _Optional[_Union[Report, _Mapping]] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class RoundReceipt(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("round", "epoch", "kind", "contributions", "statement", "blob")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    kind: str
    contributions: _containers.RepeatedCompositeFieldContainer[_update_pb2.UploadHeader]
    statement: RevealStatement
    blob: _update_pb2.BlobHeader
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., kind: _Optional[str] = ..., contributions: _Optional[_Iterable[_Union[_update_pb2.UploadHeader, _Mapping]]] = ..., statement: _Optional[_Union[RevealStatement, _Mapping]] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ...) -> None: ...

class PublishedPart(_message.Message):
    __slots__ = ("published", "chunk")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    published: Published
    chunk: _update_pb2.Chunk
    def __init__(self, published: _Optional[_Union[Published, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("round", "epoch", "statement", "reports", "blob")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    statement: RevealStatement
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    blob: _update_pb2.BlobHeader
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., statement: _Optional[_Union[RevealStatement, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("snapshot", "chunk")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    chunk: _update_pb2.Chunk
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...
