from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MaskTask(_message.Message):
    __slots__ = ("round", "step", "epoch")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: str
    epoch: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class MaskMessage(_message.Message):
    __slots__ = ("federation", "run", "round", "epoch", "client_id", "step", "body", "signature")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    federation: str
    run: str
    round: int
    epoch: int
    client_id: str
    step: str
    body: bytes
    signature: bytes
    def __init__(self, federation: _Optional[str] = ..., run: _Optional[str] = ..., round: _Optional[int] = ..., epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., step: _Optional[str] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskReceipt(_message.Message):
    __slots__ = ("round", "duplicate")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    round: int
    duplicate: bool
    def __init__(self, round: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class FetchMasksRequest(_message.Message):
    __slots__ = ("run", "round", "client_id", "step")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    client_id: str
    step: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., client_id: _Optional[str] = ..., step: _Optional[str] = ...) -> None: ...

class MaskKeys(_message.Message):
    __slots__ = ("base_state", "mask_key", "share_key", "signature")
    BASE_STATE_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    base_state: bytes
    mask_key: bytes
    share_key: bytes
    signature: bytes
    def __init__(self, base_state: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., share_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskShares(_message.Message):
    __slots__ = ("holders", "sealed", "commitment")
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedScalarFieldContainer[int]
    sealed: bytes
    commitment: bytes
    def __init__(self, holders: _Optional[_Iterable[int]] = ..., sealed: _Optional[bytes] = ..., commitment: _Optional[bytes] = ...) -> None: ...

class MaskAnswer(_message.Message):
    __slots__ = ("self_owners", "self_shares", "key_owners", "key_shares")
    SELF_OWNERS_FIELD_NUMBER: _ClassVar[int]
    SELF_SHARES_FIELD_NUMBER: _ClassVar[int]
    KEY_OWNERS_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARES_FIELD_NUMBER: _ClassVar[int]
    self_owners: _containers.RepeatedScalarFieldContainer[int]
    self_shares: bytes
    key_owners: _containers.RepeatedScalarFieldContainer[int]
    key_shares: bytes
    def __init__(self, self_owners: _Optional[_Iterable[int]] = ..., self_shares: _Optional[bytes] = ..., key_owners: _Optional[_Iterable[int]] = ..., key_shares: _Optional[bytes] = ...) -> None: ...

class MaskListedKeys(_message.Message):
    __slots__ = ("client_id", "mask_key", "share_key", "signature")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    mask_key: bytes
    share_key: bytes
    signature: bytes
    def __init__(self, client_id: _Optional[str] = ..., mask_key: _Optional[bytes] = ..., share_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskKeyList(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[MaskListedKeys]
    def __init__(self, keys: _Optional[_Iterable[_Union[MaskListedKeys, _Mapping]]] = ...) -> None: ...

class MaskInbox(_message.Message):
    __slots__ = ("shared", "owners", "sealed")
    SHARED_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    shared: bytes
    owners: _containers.RepeatedScalarFieldContainer[int]
    sealed: bytes
    def __init__(self, shared: _Optional[bytes] = ..., owners: _Optional[_Iterable[int]] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class MaskSignatures(_message.Message):
    __slots__ = ("positions", "signatures")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    signatures: bytes
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., signatures: _Optional[bytes] = ...) -> None: ...
