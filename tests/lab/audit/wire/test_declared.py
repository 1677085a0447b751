"""The table of what may travel names all that does, and nothing else."""

from __future__ import annotations

import sqlite3

from fedrec.ids import ClientId, RoundId
from fedrec.wire.chunks import Blob
from fedrec.wire.v1 import admin_pb2, coordinator_pb2
from fedrec_lab.audit.wire.declared import (
    BLOBS,
    COLUMNS,
    FIELDS,
    FILES,
    KINDS,
    file_kind,
    undeclared_event_keys,
)
from fedrec_lab.audit.wire.messages import declared_fields
from fedrec_server.store.durable_files import sealed_name, snapshot_name, sum_name, update_name
from fedrec_server.store.tables import SCHEMA

CLIENT = ClientId("a" * 64)


def test_every_field_of_the_protocol_has_a_kind() -> None:
    assert declared_fields() - set(FIELDS) == {"Chunk.data"}
    assert set(FIELDS) <= declared_fields()


def test_every_stream_of_chunks_has_a_kind() -> None:
    services = (
        coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"],
        admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    )
    with_chunks = {
        method.name
        for service in services
        for method in service.methods
        for message in (method.input_type, method.output_type)
        if "chunk" in message.fields_by_name
    }
    assert with_chunks == set(BLOBS)


def test_every_column_has_a_kind() -> None:
    rows = sqlite3.connect(":memory:")
    rows.executescript(SCHEMA)
    tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    columns = {
        f"{table}.{row[1]}"
        for table in tables
        for row in rows.execute(f"PRAGMA table_info({table})")
    }
    rows.close()
    assert columns == set(COLUMNS)


def test_every_kind_is_explained() -> None:
    used = {*FIELDS.values(), *COLUMNS.values(), *BLOBS.values(), *(kind for _, kind in FILES)}
    assert used == set(KINDS)


def test_the_files_of_the_store_are_known_and_no_others() -> None:
    blob = Blob.of(b"something")
    assert file_kind(update_name(RoundId(3), CLIENT)) == "update"
    assert file_kind(f"partial/00000003-{CLIENT}-{blob.digest.hex()}") == "unfinished update"
    assert file_kind(sum_name(RoundId(3))) == "sum"
    assert file_kind(sealed_name(RoundId(3), blob)) == "published sum"
    assert file_kind(snapshot_name(RoundId(3), blob)) == "snapshot"
    assert file_kind("coordinator.sqlite-wal") == "bookkeeping"
    assert file_kind("users.csv") is None
    assert file_kind(f"updates/{CLIENT}") is None


def test_what_operators_see_has_declared_keys() -> None:
    assert undeclared_event_keys('{"kind": "train", "counted": 3, "metrics": [1]}') == []
    assert undeclared_event_keys('{"counted": 3, "users": ["anna"]}') == ["users"]
    assert undeclared_event_keys("[1]") == ["something that is no JSON object"]
    assert undeclared_event_keys("no JSON") == ["something that is no JSON object"]
