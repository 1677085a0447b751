"""Every integer and every method of the services, and what the log says of refusals.

Fields are unsigned: -1 is written as 2^64 - 1, which parsers of 32 bits cut to 2^32 - 1.
"""

from contextlib import suppress
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from structlog.testing import capture_logs
from world.engine import REVEALER, Bench, credentials, identity, operator
from world.serving import serving

from fedrec.errors import FedrecError, ProtocolError, RoundClosed, StorageError
from fedrec.protection.masks import messages
from fedrec.wire import convert
from fedrec.wire.admin_link import RunStatus
from fedrec.wire.fields import PROTOCOL_VERSION
from fedrec.wire.grpc_calls import INCIDENT_KEY
from fedrec.wire.v1 import admin_pb2, coordinator_pb2, masks_pb2
from fedrec_server.service import callers
from fedrec_server.service.admin_service import AdminService
from fedrec_server.service.callers import RefusalLog
from fedrec_server.service.coordinator_service import CoordinatorService

SERVICES = (
    coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"],
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
)
METHODS = [method for service in SERVICES for method in service.methods]
FOR_REVEALER = {"FetchContribution", "FetchSum", "SubmitReveal"}
SIGNED = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 2**63 - 1),
}
EXTREMES = {
    FieldDescriptor.CPPTYPE_UINT32: (2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (2**31, 2**53 + 1, 2**63, 2**64 - 1),
} | SIGNED


@pytest.fixture(scope="module")
def open_run(tmp_path_factory):
    with serving(Bench.of(3, reveals=True), tmp_path_factory.mktemp("run")) as found:
        found.come(range(3))
        yield found


def filled(kind, texts):
    """Return a message in which every field has a value that fits, as far as its type tells."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.containing_oneof is not None or field.is_repeated:
            continue
        if field.message_type is not None:
            getattr(message, field.name).CopyFrom(
                filled(GetMessageClass(field.message_type), texts)
            )
        elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type != field.TYPE_BYTES:
            setattr(message, field.name, texts.get(field.name, "train"))
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, bytes(64 if field.name == "signature" else 32))
        elif field.cpp_type in EXTREMES:
            setattr(message, field.name, 1)
    return message


def swept(message, path=""):
    """Yield every integer field of a message and of those in it: its name, its owner, what it is.

    A message of a `oneof` is made where none of its members is set.
    """
    for field in message.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        if field.message_type is not None and not field.is_repeated:
            if field.containing_oneof is None or message.HasField(field.name):
                yield from swept(getattr(message, field.name), f"{name}.")
        elif field.cpp_type in EXTREMES:
            yield name, message, field


def extreme(message):
    """Set one integer of a message after the other to each extreme, and then back again."""
    for name, owner, field in swept(message):
        for value in EXTREMES[field.cpp_type]:
            if field.is_repeated:
                getattr(owner, field.name).append(value)
                yield name, value
                del getattr(owner, field.name)[:]
                continue
            before = getattr(owner, field.name)
            setattr(owner, field.name, value)
            yield name, value
            setattr(owner, field.name, before)


def parts_of(kind, texts):
    """Return a stream's parts: each member of the `oneof`, or the one message."""
    if "part" not in kind.DESCRIPTOR.oneofs_by_name:
        return [filled(kind, texts)]
    found = []
    for field in kind.DESCRIPTOR.oneofs_by_name["part"].fields:
        part = kind()
        getattr(part, field.name).CopyFrom(filled(GetMessageClass(field.message_type), texts))
        found.append(part)
    return found


def test_the_sweep_reaches_what_there_is():
    names = {
        f"{method.name} {name}"
        for method in METHODS
        for part in parts_of(GetMessageClass(method.input_type), {})
        for name, _ in extreme(part)
    }
    assert {
        "WatchEvents after_event",
        "NextTask version",
        "NextTask header.epoch",
        "NextTask statement.paused",
        "SubmitUpdate chunk.offset",
        "SubmitReveal blob.length",
        "FetchSnapshot after_round",
    } <= names
    assert len(names) >= 48


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_no_integer_of_a_request_is_a_defect(open_run, method):
    is_admin = method.containing_service.name == "Admin"
    number = REVEALER if method.name in FOR_REVEALER else 0
    me = identity(number).client_id
    texts = {
        "client_id": me,
        "contributor": me,
        "run": open_run.run,
        "federation": "movies",
        "protocol_version": PROTOCOL_VERSION,
        "step": "shares",
        "refused": "",
    }
    kind, answer = map(GetMessageClass, (method.input_type, method.output_type))
    seen = []
    with (
        open_run.channel(operator() if is_admin else credentials(number)) as channel,
        structlog.testing.capture_logs() as logs,
    ):
        shape = f"{'stream' if method.client_streaming else 'unary'}_" + (
            "stream" if method.server_streaming else "unary"
        )
        call = getattr(channel, shape)(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=kind.SerializeToString,
            response_deserializer=answer.FromString,
        )
        parts = parts_of(kind, texts)
        for part in parts:
            for name, value in extreme(part):
                request: Any = iter(parts) if method.client_streaming else part
                try:
                    found = call(request, timeout=20)
                    list(found) if method.server_streaming else found
                except grpc.RpcError as error:
                    seen.append((name, value, error.code()))
    defects = [one for one in seen if one[2] in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)]
    assert not defects
    assert not [line for line in logs if line["event"] == "call failed"]
    if method.name == "WatchEvents":
        beyond = {value for _, value, code in seen if code is grpc.StatusCode.INVALID_ARGUMENT}
        assert beyond == {2**53 + 1, 2**63, 2**64 - 1}


@pytest.mark.parametrize("codec", convert._CODECS.values(), ids=lambda codec: codec._name)
def test_no_integer_of_an_answer_is_a_defect(codec):
    """What a client reads of a coordinator's word is a value that fits, or a refusal."""
    texts = {"client_id": "ab" * 32, "protocol_version": PROTOCOL_VERSION, "step": "shares"}
    message, refused = filled(codec.proto, texts), []
    behind = {
        name: b""
        for name in ("blob", "catalogue")
        if name in codec._fields and codec.proto.DESCRIPTOR.name in ("Published", "Snapshot")
    }
    for name, value in extreme(message):
        try:
            codec.from_proto(message, **behind)
        except FedrecError as error:
            refused.append((name, value, error.code))
    assert all(code in ("protocol", "malformed_update") for _, _, code in refused), refused


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (masks_pb2.MaskShares(sealed=bytes(82), commitment=bytes(32)), messages.BUNDLE.from_bytes),
        (masks_pb2.MaskAnswer(self_shares=bytes(33)), messages.GIVEN.from_bytes),
        (masks_pb2.MaskAnswer(key_shares=bytes(33)), messages.GIVEN.from_bytes),
        (masks_pb2.MaskInbox(shared=b"\x07", sealed=bytes(82)), messages.INBOX.from_bytes),
        (masks_pb2.MaskSignatures(signatures=bytes(64)), messages.signatures_from_bytes),
    ],
    ids=lambda one: type(one).__name__,
)
def test_no_integer_in_a_step_s_body_is_a_defect(body, read):
    found = 0
    for _ in extreme(body):
        found += 1
        with suppress(FedrecError):
            read(body.SerializeToString())
    assert found


def test_no_integer_of_a_status_is_a_defect():
    message = filled(admin_pb2.Status, {})
    for _ in extreme(message):
        assert RunStatus.of(message).federation


def test_offsets_of_chunks_behind_a_header(tmp_path):
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found, structlog.testing.capture_logs() as logs:
        found.come(range(3))
        payload = bench.payload(0, 1)
        state = found.coordinator.engine.run.state
        from world.machine import terms_of

        header = bench.header(0, 1, payload, found.run, **terms_of(state))
        for offset in EXTREMES[FieldDescriptor.CPPTYPE_UINT64]:
            with pytest.raises(grpc.RpcError) as refused:
                found.submit(header, (offset, b"x"))
            assert refused.value.code() is grpc.StatusCode.DATA_LOSS
        assert found.upload(0) is False
    assert not [line for line in logs if line["event"] == "call failed"]


@pytest.mark.parametrize(
    ("descriptor", "service"),
    [
        (admin_pb2.DESCRIPTOR.services_by_name["Admin"], AdminService),
        (coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"], CoordinatorService),
    ],
    ids=["Admin", "Coordinator"],
)
def test_every_method_is_written(descriptor, service):
    inherited = {
        method.name
        for method in descriptor.methods
        if getattr(service, method.name).__module__.endswith("_pb2_grpc")
    }
    assert inherited == set(), f"write these methods in {service.__module__}"


SUBMIT = "/fedrec.wire.v1.Coordinator/SubmitUpdate"


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def test_one_line_a_minute_for_each_caller_and_code():
    time = Time()
    log = RefusalLog(time)
    with capture_logs() as lines:
        for second in range(180):
            time.now = float(second)
            for _ in range(10):
                incidents = {
                    log.tell(RoundClosed("over"), SUBMIT, "north"),
                    log.tell(StorageError("full"), SUBMIT, "north"),
                    log.tell(RoundClosed("over"), SUBMIT, "south"),
                }
                assert len(incidents) == 3, "whose details are in the log"
    assert len(lines) == 9
    assert {line["incident"] for line in lines[-3:]} == incidents
    assert [line.get("more_since_the_last_line") for line in lines] == [None] * 3 + [599] * 6
    assert {(line["client"], line["code"]) for line in lines} == {
        ("north", "round_closed"),
        ("north", "storage"),
        ("south", "round_closed"),
    }


def test_defects_are_counted_as_well():
    log = RefusalLog(Time())
    with capture_logs() as lines:
        for _ in range(50):
            log.tell(KeyError("x"), SUBMIT, "")
    (line,) = lines
    assert line["event"] == "call failed" and line["log_level"] == "error"
    assert "client" not in line


def test_callers_that_went_are_forgotten(monkeypatch):
    monkeypatch.setattr(callers, "MOST_KNOWN", 100)
    time = Time()
    log = RefusalLog(time)
    with capture_logs():
        for number in range(1_000):
            time.now = float(number)
            log.tell(ProtocolError("no"), SUBMIT, f"client {number}")
    assert len(log._reported) <= 100


def test_a_member_that_is_refused_a_hundred_times(collecting):
    with collecting.channel() as channel, capture_logs() as lines:
        call = channel.unary_unary("/fedrec.wire.v1.Coordinator/NextTask")
        for _ in range(100):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"\xff" * 10, timeout=20)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        listing = channel.unary_unary("/fedrec.wire.v1.Admin/GetStatus")
        seen = []
        for _ in range(100):
            with pytest.raises(grpc.RpcError) as refused:
                listing(b"", timeout=20)
            seen.append(dict(refused.value.trailing_metadata())[INCIDENT_KEY])
    found = [line for line in lines if line["event"] == "call refused"]
    assert [line["code"] for line in found] == ["protocol", "refused"]
    assert set(seen) == {found[1]["incident"]}
