from fedrec.wire.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RevealStatement(_message.Message):
    __slots__ = ("federation", "run", "round", "epoch", "client_id", "manifest_digest", "aggregate_tag", "state_tag", "locked_metrics", "signature", "share", "published_digest", "n_rows", "rows_digest")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_TAG_FIELD_NUMBER: _ClassVar[int]
    STATE_TAG_FIELD_NUMBER: _ClassVar[int]
    LOCKED_METRICS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    N_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    federation: str
    run: str
    round: int
    epoch: int
    client_id: str
    manifest_digest: bytes
    aggregate_tag: bytes
    state_tag: bytes
    locked_metrics: bytes
    signature: bytes
    share: bytes
    published_digest: bytes
    n_rows: int
    rows_digest: bytes
    def __init__(self, federation: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., manifest_digest: _Optional[bytes] = ..., aggregate_tag: _Optional[bytes] = ..., state_tag: _Optional[bytes] = ..., locked_metrics: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., share: _Optional[bytes] = ..., published_digest: _Optional[bytes] = ..., n_rows: _Optional[int] = ..., rows_digest: _Optional[bytes] = ...) -> None: ...

class RevealPart(_message.Message):
    __slots__ = ("statement", "blob", "chunk")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    statement: RevealStatement
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, statement: _Optional[_Union[RevealStatement, _Mapping]] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class RevealReceipt(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("round", "epoch", "kind", "contributions", "statements", "sealed", "blob", "committee")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    COMMITTEE_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    kind: str
    contributions: _containers.RepeatedCompositeFieldContainer[_update_pb2.UploadHeader]
    statements: _containers.RepeatedCompositeFieldContainer[RevealStatement]
    sealed: bool
    blob: _update_pb2.BlobHeader
    committee: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., kind: _Optional[str] = ..., contributions: _Optional[_Iterable[_Union[_update_pb2.UploadHeader, _Mapping]]] = ..., statements: _Optional[_Iterable[_Union[RevealStatement, _Mapping]]] = ..., sealed: _Optional[bool] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., committee: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishedPart(_message.Message):
    __slots__ = ("published", "chunk")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    published: Published
    chunk: _update_pb2.Chunk
    def __init__(self, published: _Optional[_Union[Published, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("round", "epoch", "statements", "sealed", "blob")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    statements: _containers.RepeatedCompositeFieldContainer[RevealStatement]
    sealed: bool
    blob: _update_pb2.BlobHeader
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., statements: _Optional[_Iterable[_Union[RevealStatement, _Mapping]]] = ..., sealed: _Optional[bool] = ..., blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("snapshot", "chunk")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    chunk: _update_pb2.Chunk
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...
