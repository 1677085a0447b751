"""The table of what may travel names all that does, and nothing else."""

import importlib
import pkgutil
import sqlite3

from fedrec.ids import ClientId, RoundId
from fedrec.wire import v1
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
from fedrec_server.store.durable_files import sealed_name, snapshot_name, sum_name, update_name
from fedrec_server.store.tables import prepare, table_names, tables

CLIENT = ClientId("a" * 64)
PREFIX = "fedrec.wire.v1."


def test_every_field_of_the_protocol_has_a_kind():
    modules = [
        importlib.import_module(one.name) for one in pkgutil.iter_modules(v1.__path__, PREFIX)
    ]
    declared = {
        f"{message.name}.{field.name}"
        for module in modules
        if module.__name__.endswith("_pb2")
        for message in module.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.message_type is None
    }
    assert declared - set(FIELDS) == {"Chunk.data"}
    assert set(FIELDS) <= declared


def test_every_stream_of_chunks_has_a_kind():
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


def test_every_column_has_a_kind():
    rows = sqlite3.connect(":memory:")
    prepare(rows)
    for statement in tables().values():
        rows.execute(statement)
    columns = {
        f"{table}.{row[1]}"
        for table in table_names(rows)
        for row in rows.execute(f"PRAGMA table_xinfo({table})")
    }
    rows.close()
    # Databases of earlier versions have SQLite's own table, too.
    assert columns == set(COLUMNS) - {"sqlite_sequence.name", "sqlite_sequence.seq"}


def test_every_kind_is_explained():
    used = {*FIELDS.values(), *COLUMNS.values(), *BLOBS.values(), *(kind for _, kind in FILES)}
    assert used == set(KINDS)


def test_the_files_of_the_store_are_known_and_no_others():
    blob = Blob.of(b"something")
    assert file_kind(update_name(RoundId(3), CLIENT)) == "update"
    assert file_kind(f"partial/00000003-{CLIENT}-{blob.digest.hex()}") == "unfinished update"
    assert file_kind(sum_name(RoundId(3))) == "sum"
    assert file_kind(sealed_name(RoundId(3), blob)) == "published sum"
    assert file_kind(snapshot_name(RoundId(3), blob)) == "snapshot"
    assert file_kind("coordinator.sqlite-wal") == "bookkeeping"
    assert file_kind("users.csv") is None
    assert file_kind(f"updates/{CLIENT}") is None


def test_what_operators_see_has_declared_keys():
    assert undeclared_event_keys('{"kind": "train", "counted": 3, "metrics": [1]}') == []
    assert undeclared_event_keys('{"counted": 3, "users": ["anna"]}') == ["users"]
    assert undeclared_event_keys("[1]") == ["a value that is not a JSON object"]
    assert undeclared_event_keys("no JSON") == ["a value that is not a JSON object"]
