"""Conversion: every value comes back the same, every bad field is refused by name."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from fedrec.errors import ProtocolError, TooLarge, VersionMismatch
from fedrec.ids import ClientId, RoundId
from fedrec.wire import convert, messages
from fedrec.wire.chunks import Blob
from fedrec.wire.convert import TASK
from fedrec.wire.fields import MAX_CONTRIBUTIONS, MAX_REPORTS
from fedrec.wire.messages import (
    NOTHING,
    Application,
    Finished,
    Latest,
    MakeSnapshot,
    Remembered,
    Reveal,
    StepTask,
    Task,
    Train,
    UploadStatus,
    Wait,
)
from fedrec.wire.v1 import coordinator_pb2, model_pb2, update_pb2


def reveal(values: Any, **changes: Any) -> Reveal:
    arguments = {
        "round": RoundId(3),
        "kind": "train",
        "base_round": RoundId(2),
        "contributions": (values.header(), values.header(client_id=ClientId("cd" * 32))),
        "sum": Blob(length=5, digest=b"h" * 32),
        "epoch": 2,
    }
    return Reveal(**{**arguments, **changes})


TRAIN = Train(
    round=RoundId(3),
    kind="count",
    base_round=RoundId(2),
    seconds_left=1.5,
    epoch=2,
)


def test_every_message_has_a_conversion():
    known = {getattr(messages, name) for name in messages.__all__}
    kinds = {one for one in known if isinstance(one, type) and is_dataclass(one)}
    assert kinds and kinds <= convert._CODECS.keys()


CONVERSIONS = {
    "header": convert.UPLOAD_HEADER,
    "statement": convert.STATEMENT,
    "report": convert.REPORT,
    "federation": convert.FEDERATION,
}


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_values_come_back_the_same_and_every_field_is_written(values, kind):
    """A field that a conversion forgot would come back as its default."""
    value = getattr(values, kind)()
    message = CONVERSIONS[kind].to_proto(value)
    assert CONVERSIONS[kind].from_proto(message) == value
    assert {f.name for f, _ in message.ListFields()} == {f.name for f in fields(value)}


def test_other_values_come_back_the_same(values):
    for conversion, value in (
        (convert.UPLOAD_STATUS, UploadStatus(offset=5, accepted=True)),
        (convert.APPLICATION, Application(epoch=7, listed=True)),
    ):
        assert conversion.from_proto(conversion.to_proto(value)) == value
    published, snapshot = values.published(), values.snapshot()
    for sent in (published, replace(published, statement=None)):
        message = convert.PUBLISHED.to_proto(sent)
        assert convert.BLOB.from_proto(message.blob, "blob") == Blob.of(sent.blob)
        assert convert.PUBLISHED.from_proto(message, blob=sent.blob) == sent
    found = convert.SNAPSHOT.from_proto(convert.SNAPSHOT.to_proto(snapshot), blob=b"model")
    assert found == snapshot


def test_what_each_side_remembers_comes_back_the_same(values):
    for remembered in (
        NOTHING,
        Remembered(acknowledged_round=RoundId(7), acknowledged_digest=b"d" * 32),
        Remembered(
            acknowledged_round=RoundId(7),
            acknowledged_digest=b"d" * 32,
            statement=values.statement(),
        ),
        Remembered(
            acknowledged_round=RoundId(7), acknowledged_digest=b"d" * 32, header=values.header()
        ),
    ):
        request = convert.REMEMBERED.to_proto(remembered)
        assert convert.REMEMBERED.from_proto(request) == remembered
    for latest in (None, Latest(header=None), Latest(header=values.header())):
        task = Task(published_round=RoundId(3), task=Wait(reason=""), epoch=2, latest=latest)
        again = coordinator_pb2.Task.FromString(TASK.to_proto(task).SerializeToString())
        assert TASK.from_proto(again) == task


@pytest.mark.parametrize("kind", ["header", "statement", "report"])
def test_a_signature_covers_every_field(values, kind):
    text = getattr(values, kind)()
    signed = {
        field.name
        for field in fields(text)
        if replace(text, **{field.name: "other"}).statement() != text.statement()
    }
    assert signed == {field.name for field in fields(text)} - {"signature"}


def test_tasks_come_back_the_same(values):
    for task in (
        Wait(reason="all busy"),
        Wait(),
        TRAIN,
        reveal(values),
        reveal(values, contributions=()),
        MakeSnapshot(round=RoundId(4)),
        StepTask(round=RoundId(4), step="vector", epoch=2),
        Finished(reason="done"),
        Finished(reason="budget", failed=True),
    ):
        whole = Task(published_round=RoundId(9), task=task, epoch=3)
        assert TASK.from_proto(TASK.to_proto(whole)) == whole


def test_a_reason_is_cut_to_what_the_other_side_accepts():
    task = Task(published_round=RoundId(0), task=Finished(reason="a\nb" + "x" * 5_000))
    found = TASK.from_proto(TASK.to_proto(task)).task
    assert isinstance(found, Finished) and found.reason.startswith("a bx")


def test_an_unknown_task_is_refused():
    with pytest.raises(ProtocolError, match="does not know"):
        TASK.from_proto(coordinator_pb2.Task(published_round=1))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("header.protocol_version", "1.0", VersionMismatch),
        ("header.protocol_version", "", ProtocolError),
        ("header.protocol_version", "1", ProtocolError),
        ("header.federation", "", ProtocolError),
        ("header.federation", "x" * 201, TooLarge),
        ("header.run", "a\nb", ProtocolError),
        ("header.round", 2**31, ProtocolError),
        ("header.kind", "", ProtocolError),
        ("header.kind", "Train", ProtocolError),
        ("header.base_round", 2**31, ProtocolError),
        ("header.epoch", 2**64 - 1, ProtocolError),
        ("header.client_id", "", ProtocolError),
        ("header.client_id", "AB" * 32, ProtocolError),
        ("header.client_id", "ab" * 32 + "\n", ProtocolError),
        ("header.catalogue_fingerprint", "x" * 201, TooLarge),
        ("header.plan_fingerprint", "", ProtocolError),
        ("header.length", 2**63, ProtocolError),
        ("header.digest", b"x" * 31, ProtocolError),
        ("header.signature", b"x" * 63, ProtocolError),
        ("statement.manifest_digest", b"", ProtocolError),
        ("statement.state_tag", b"x" * 31, ProtocolError),
        ("statement.metrics", bytes(64 * 1024 + 8), TooLarge),
        ("statement.refused", "x" * 2001, TooLarge),
        ("statement.refused", "a\nb", ProtocolError),
        ("statement.signature", b"x", ProtocolError),
        ("statement.client_id", "x", ProtocolError),
        ("report.state_tag", b"x" * 31, ProtocolError),
        ("report.metrics", bytes(64 * 1024 + 8), TooLarge),
        ("report.n_rows", 2**31, ProtocolError),
        ("report.rows_digest", b"", ProtocolError),
        ("report.signature", b"x", ProtocolError),
        ("report.client_id", "x", ProtocolError),
        ("federation.protocol_version", "0.9", VersionMismatch),
        ("federation.plan_json", bytes(1024 * 1024 + 1), TooLarge),
        ("federation.roster_json", bytes(4 * 1024 * 1024 + 1), TooLarge),
        ("federation.n_items", 2**31, ProtocolError),
        ("federation.published_round", 2**31, ProtocolError),
    ],
)
def test_a_bad_field_is_named(values, field, value, error):
    kind, _, name = field.partition(".")
    conversion = CONVERSIONS[kind]
    message = conversion.to_proto(getattr(values, kind)())
    setattr(message, name, value)
    with pytest.raises(error, match=field):
        conversion.from_proto(message)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda m: setattr(m.train, "kind", "sleep"), "train.kind"),
        (lambda m: setattr(m.train, "seconds_left", float("nan")), "train.seconds_left"),
        (lambda m: setattr(m.train, "seconds_left", -1.0), "train.seconds_left"),
        (lambda m: setattr(m.train, "seconds_left", float("inf")), "train.seconds_left"),
        (lambda m: setattr(m.train, "round", 2**40), "train.round"),
        (lambda m: setattr(m.reveal, "kind", ""), "reveal.kind"),
        (lambda m: setattr(m.reveal.sum, "digest", b""), "reveal.sum.digest"),
        (lambda m: setattr(m.wait, "reason", "x" * 2_001), "wait.reason"),
        (lambda m: setattr(m.finished, "reason", "\x1b"), "finished.reason"),
        (lambda m: setattr(m, "published_round", 2**40), "task.published_round"),
    ],
)
def test_a_bad_task_field_is_named(values, change, field):
    kind = field.partition(".")[0]
    task = reveal(values) if kind == "reveal" else TRAIN
    message = TASK.to_proto(Task(published_round=RoundId(0), task=task))
    change(message)
    with pytest.raises(ProtocolError, match=field):
        TASK.from_proto(message)


def test_lists_are_bounded_and_name_no_client_twice(values):
    header = convert.UPLOAD_HEADER.to_proto(values.header())
    message = convert.PUBLISHED.to_proto(values.published())
    message.contributions.append(header)
    with pytest.raises(ProtocolError, match=r"published\.contributions names a client twice"):
        convert.PUBLISHED.from_proto(message, blob=b"")
    many = model_pb2.Published(contributions=[header] * (MAX_CONTRIBUTIONS + 1), kind="train")
    with pytest.raises(TooLarge, match=r"published\.contributions"):
        convert.PUBLISHED.from_proto(many, blob=b"")
    report = convert.REPORT.to_proto(values.report())
    several = model_pb2.Snapshot(reports=[report] * (MAX_REPORTS + 1))
    with pytest.raises(TooLarge, match=r"snapshot\.reports"):
        convert.SNAPSHOT.from_proto(several, blob=b"")
    with pytest.raises(ProtocolError, match="blob"):
        convert.BLOB.from_proto(update_pb2.BlobHeader(length=1, digest=b""), "blob")
