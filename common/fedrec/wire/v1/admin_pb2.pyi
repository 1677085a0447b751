from fedrec.wire.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListApplicantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Applicants(_message.Message):
    __slots__ = ("application",)
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    application: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, application: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EpochPart(_message.Message):
    __slots__ = ("blob", "chunk")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    blob: _update_pb2.BlobHeader
    chunk: _update_pb2.Chunk
    def __init__(self, blob: _Optional[_Union[_update_pb2.BlobHeader, _Mapping]] = ..., chunk: _Optional[_Union[_update_pb2.Chunk, _Mapping]] = ...) -> None: ...

class InstallEpochReply(_message.Message):
    __slots__ = ("epoch", "began")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    began: bool
    def __init__(self, epoch: _Optional[int] = ..., began: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("round", "kind", "phase", "expected", "arrived", "bytes_received", "seconds_left")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: str
    phase: str
    expected: int
    arrived: int
    bytes_received: int
    seconds_left: float
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[str] = ..., phase: _Optional[str] = ..., expected: _Optional[int] = ..., arrived: _Optional[int] = ..., bytes_received: _Optional[int] = ..., seconds_left: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("federation", "run", "protection", "published_round", "rounds_published", "rounds_planned", "rounds_abandoned", "clients_seen", "clients_in_roster", "finished", "finish_reason", "current", "last_event", "epoch", "next_epoch", "waits_for", "authority_heard", "quality", "awaited", "stalled", "epsilon", "protocol", "caution", "clients_here", "members", "now", "stop_asked", "disk_full", "unplaced")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_ABANDONED_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_SEEN_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_IN_ROSTER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_HEARD_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CAUTION_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_HERE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    STOP_ASKED_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    UNPLACED_FIELD_NUMBER: _ClassVar[int]
    federation: str
    run: str
    protection: str
    published_round: int
    rounds_published: int
    rounds_planned: int
    rounds_abandoned: int
    clients_seen: int
    clients_in_roster: int
    finished: bool
    finish_reason: str
    current: RoundStatus
    last_event: int
    epoch: int
    next_epoch: int
    waits_for: str
    authority_heard: float
    quality: Quality
    awaited: _containers.RepeatedScalarFieldContainer[str]
    stalled: bool
    epsilon: float
    protocol: str
    caution: str
    clients_here: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    now: float
    stop_asked: bool
    disk_full: str
    unplaced: str
    def __init__(self, federation: _Optional[str] = ..., run: _Optional[str] = ..., protection: _Optional[str] = ..., published_round: _Optional[int] = ..., rounds_published: _Optional[int] = ..., rounds_planned: _Optional[int] = ..., rounds_abandoned: _Optional[int] = ..., clients_seen: _Optional[int] = ..., clients_in_roster: _Optional[int] = ..., finished: _Optional[bool] = ..., finish_reason: _Optional[str] = ..., current: _Optional[_Union[RoundStatus, _Mapping]] = ..., last_event: _Optional[int] = ..., epoch: _Optional[int] = ..., next_epoch: _Optional[int] = ..., waits_for: _Optional[str] = ..., authority_heard: _Optional[float] = ..., quality: _Optional[_Union[Quality, _Mapping]] = ..., awaited: _Optional[_Iterable[str]] = ..., stalled: _Optional[bool] = ..., epsilon: _Optional[float] = ..., protocol: _Optional[str] = ..., caution: _Optional[str] = ..., clients_here: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., now: _Optional[float] = ..., stop_asked: _Optional[bool] = ..., disk_full: _Optional[str] = ..., unplaced: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "state", "why", "heard", "version", "model", "last_counted", "bytes_counted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAST_COUNTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_COUNTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    why: str
    heard: float
    version: str
    model: int
    last_counted: int
    bytes_counted: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., heard: _Optional[float] = ..., version: _Optional[str] = ..., model: _Optional[int] = ..., last_counted: _Optional[int] = ..., bytes_counted: _Optional[int] = ...) -> None: ...

class Quality(_message.Message):
    __slots__ = ("round", "at", "loss", "validation_hr", "validation_ndcg", "test_hr", "test_ndcg")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_HR_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_NDCG_FIELD_NUMBER: _ClassVar[int]
    TEST_HR_FIELD_NUMBER: _ClassVar[int]
    TEST_NDCG_FIELD_NUMBER: _ClassVar[int]
    round: int
    at: int
    loss: float
    validation_hr: float
    validation_ndcg: float
    test_hr: float
    test_ndcg: float
    def __init__(self, round: _Optional[int] = ..., at: _Optional[int] = ..., loss: _Optional[float] = ..., validation_hr: _Optional[float] = ..., validation_ndcg: _Optional[float] = ..., test_hr: _Optional[float] = ..., test_ndcg: _Optional[float] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("after_event", "follow")
    AFTER_EVENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    after_event: int
    follow: bool
    def __init__(self, after_event: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "unix_seconds", "kind", "round", "fields_json")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    unix_seconds: float
    kind: str
    round: int
    fields_json: str
    def __init__(self, sequence: _Optional[int] = ..., unix_seconds: _Optional[float] = ..., kind: _Optional[str] = ..., round: _Optional[int] = ..., fields_json: _Optional[str] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("now",)
    NOW_FIELD_NUMBER: _ClassVar[int]
    now: bool
    def __init__(self, now: _Optional[bool] = ...) -> None: ...

class StopRunReply(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class OpenPageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PageLink(_message.Message):
    __slots__ = ("scheme", "host", "port", "token", "good_seconds")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GOOD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    host: str
    port: int
    token: str
    good_seconds: float
    def __init__(self, scheme: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ..., good_seconds: _Optional[float] = ...) -> None: ...
