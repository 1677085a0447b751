from fedrec.wire.v1 import masks_pb2 as _masks_pb2
from fedrec.wire.v1 import model_pb2 as _model_pb2
from fedrec.wire.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Goodbye(_message.Message):
    __slots__ = ("client_id", "code")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    code: str
    def __init__(self, client_id: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class GoodbyeReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("application",)
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    application: bytes
    def __init__(self, application: _Optional[bytes] = ...) -> None: ...

class Application(_message.Message):
    __slots__ = ("epoch", "listed", "certificate")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    listed: bool
    certificate: bytes
    def __init__(self, epoch: _Optional[int] = ..., listed: _Optional[bool] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class GetFederationRequest(_message.Message):
    __slots__ = ("protocol_version", "client_id", "release")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    client_id: str
    release: str
    def __init__(self, protocol_version: _Optional[str] = ..., client_id: _Optional[str] = ..., release: _Optional[str] = ...) -> None: ...

class Federation(_message.Message):
    __slots__ = ("protocol_version", "federation", "run", "plan_json", "catalogue_fingerprint", "n_items", "epoch", "roster_json", "server_context", "wrapped_secrets", "published_round", "statement")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    N_ITEMS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROSTER_JSON_FIELD_NUMBER: _ClassVar[int]
    SERVER_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    WRAPPED_SECRETS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_ROUND_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    federation: str
    run: str
    plan_json: bytes
    catalogue_fingerprint: str
    n_items: int
    epoch: int
    roster_json: bytes
    server_context: bytes
    wrapped_secrets: bytes
    published_round: int
    statement: _model_pb2.RevealStatement
    def __init__(self, protocol_version: _Optional[str] = ..., federation: _Optional[str] = ..., run: _Optional[str] = ..., plan_json: _Optional[bytes] = ..., catalogue_fingerprint: _Optional[str] = ..., n_items: _Optional[int] = ..., epoch: _Optional[int] = ..., roster_json: _Optional[bytes] = ..., server_context: _Optional[bytes] = ..., wrapped_secrets: _Optional[bytes] = ..., published_round: _Optional[int] = ..., statement: _Optional[_Union[_model_pb2.RevealStatement, _Mapping]] = ...) -> None: ...

class GetCatalogueRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class CataloguePart(_message.Message):
    __slots__ = ("blob", "chunk")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class NextTaskRequest(_message.Message):
    __slots__ = ("client_id", "run", "version", "wait_seconds", "acknowledged_round", "acknowledged_digest", "statement", "header")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_ROUND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    run: str
    version: int
    wait_seconds: float
    acknowledged_round: int
    acknowledged_digest: bytes
    statement: _model_pb2.RevealStatement
    header: _update_pb2.UploadHeader
    def __init__(self, client_id: _Optional[str] = ..., run: _Optional[str] = ..., version: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., acknowledged_round: _Optional[int] = ..., acknowledged_digest: _Optional[bytes] = ..., statement: _Optional[_Union[_model_pb2.RevealStatement, _Mapping]] = ..., header: _Optional[_Union[_update_pb2.UploadHeader, _Mapping]] = ...) -> None: ...

class Latest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _update_pb2.UploadHeader
    def __init__(self, header: _Optional[_Union[_update_pb2.UploadHeader, _Mapping]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "about")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    about: int
    def __init__(self, reason: _Optional[str] = ..., about: _Optional[int] = ...) -> None: ...

class Train(_message.Message):
    __slots__ = ("round", "kind", "base_round", "seconds_left", "epoch")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: str
    base_round: int
    seconds_left: float
    epoch: int
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[str] = ..., base_round: _Optional[int] = ..., seconds_left: _Optional[float] = ..., epoch: _Optional[int] = ...) -> None: ...

class Reveal(_message.Message):
    __slots__ = ("round", "kind", "base_round", "contributions", "sum", "epoch")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: str
    base_round: int
    contributions: _containers.RepeatedCompositeFieldContainer[_update_pb2.UploadHeader]
    sum: _update_pb2.BlobHeader
    epoch: int
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[str] = ..., base_round: _Optional[int] = ..., contributions: _Optional[_Iterable[_Union[_update_pb2.UploadHeader, _Mapping]]] = ..., sum: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class MakeSnapshot(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "failed")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    failed: bool
    def __init__(self, reason: _Optional[str] = ..., failed: _Optional[bool] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("published_round", "wait", "train", "reveal", "finished", "make_snapshot", "masks", "epoch", "latest")
    PUBLISHED_ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MAKE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    published_round: int
    wait: Wait
    train: Train
    reveal: Reveal
    finished: Finished
    make_snapshot: MakeSnapshot
    masks: _masks_pb2.MaskTask
    epoch: int
    latest: Latest
    def __init__(self, published_round: _Optional[int] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., train: _Optional[_Union[Train, _Mapping]] = ..., reveal: _Optional[_Union[Reveal, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., make_snapshot: _Optional[_Union[MakeSnapshot, _Mapping]] = ..., masks: _Optional[_Union[_masks_pb2.MaskTask, _Mapping]] = ..., epoch: _Optional[int] = ..., latest: _Optional[_Union[Latest, _Mapping]] = ...) -> None: ...

class UploadStatusRequest(_message.Message):
    __slots__ = ("run", "round", "client_id", "digest")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    client_id: str
    digest: bytes
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., client_id: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class UploadStatus(_message.Message):
    __slots__ = ("offset", "accepted")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    accepted: bool
    def __init__(self, offset: _Optional[int] = ..., accepted: _Optional[bool] = ...) -> None: ...

class FetchContributionRequest(_message.Message):
    __slots__ = ("run", "round", "client_id", "contributor")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    client_id: str
    contributor: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., client_id: _Optional[str] = ..., contributor: _Optional[str] = ...) -> None: ...

class FetchSumRequest(_message.Message):
    __slots__ = ("run", "round", "client_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    client_id: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...

class ContributionPart(_message.Message):
    __slots__ = ("blob", "chunk")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class FetchPublishedRequest(_message.Message):
    __slots__ = ("run", "client_id", "after_round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    client_id: str
    after_round: int
    def __init__(self, run: _Optional[str] = ..., client_id: _Optional[str] = ..., after_round: _Optional[int] = ...) -> None: ...

class FetchOwnModelRequest(_message.Message):
    __slots__ = ("run", "round", "client_id", "parameter")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    client_id: str
    parameter: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., client_id: _Optional[str] = ..., parameter: _Optional[str] = ...) -> None: ...

class FetchSnapshotRequest(_message.Message):
    __slots__ = ("run", "client_id", "after_round", "refused")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    run: str
    client_id: str
    after_round: int
    refused: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, run: _Optional[str] = ..., client_id: _Optional[str] = ..., after_round: _Optional[int] = ..., refused: _Optional[_Iterable[bytes]] = ...) -> None: ...
