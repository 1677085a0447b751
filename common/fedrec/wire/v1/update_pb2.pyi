from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UploadHeader(_message.Message):
    __slots__ = ("protocol_version", "federation", "run", "round", "epoch", "client_id", "catalogue_fingerprint", "plan_fingerprint", "length", "digest", "signature", "kind", "base_round", "base_state", "key_list", "nonce", "n_rows", "rows_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_STATE_FIELD_NUMBER: _ClassVar[int]
    KEY_LIST_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    N_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    federation: str
    run: str
    round: int
    epoch: int
    client_id: str
    catalogue_fingerprint: str
    plan_fingerprint: str
    length: int
    digest: bytes
    signature: bytes
    kind: str
    base_round: int
    base_state: bytes
    key_list: bytes
    nonce: bytes
    n_rows: int
    rows_digest: bytes
    def __init__(self, protocol_version: _Optional[str] = ..., federation: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., catalogue_fingerprint: _Optional[str] = ..., plan_fingerprint: _Optional[str] = ..., length: _Optional[int] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., kind: _Optional[str] = ..., base_round: _Optional[int] = ..., base_state: _Optional[bytes] = ..., key_list: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., n_rows: _Optional[int] = ..., rows_digest: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadHeader
    chunk: Chunk
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class UploadReceipt(_message.Message):
    __slots__ = ("round", "duplicate")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    round: int
    duplicate: bool
    def __init__(self, round: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class BlobHeader(_message.Message):
    __slots__ = ("length", "digest")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    length: int
    digest: bytes
    def __init__(self, length: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...
