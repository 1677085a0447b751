"""`fedrec status`, `watch` and `stop` against a coordinator's operators' service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from world.keys import credentials, server_credentials

from fedrec.cli.flags import address_of_kits
from fedrec.cli.operating import status_rows
from fedrec.identity.document import write_secret
from fedrec.wire.admin_link import RunStatus
from fedrec.wire.v1 import admin_pb2
from fedrec.wire.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server


class FakeAdmin(AdminServicer):
    """A run in its second round."""

    def __init__(self) -> None:
        self.stopped: list[bool] = []
        self.measured_under: dict[str, str] = {}
        self.more: dict[str, Any] = {}
        self.time = 0.0

    def GetStatus(self, request: Any, context: Any) -> Any:
        found = admin_pb2.Status(
            federation="movies",
            run="abc",
            protection="bfv",
            published_round=1,
            rounds_published=1,
            rounds_planned=62,
            clients_seen=3,
            clients_in_roster=4,
            current=admin_pb2.RoundStatus(
                round=2, kind="train", phase="collecting", expected=3, arrived=2,
                bytes_received=2048, seconds_left=9.5,
            ),
            last_event=2,
            awaited=["hospital-b"],
            quality=admin_pb2.Quality(
                round=1, at=10, loss=0.25, validation_hr=0.1421, validation_ndcg=0.072
            ),
            **self.measured_under,
        )  # fmt: skip
        for name, value in self.more.items():
            if name == "members":
                found.members.extend(value)
            else:
                setattr(found, name, value)
        return found

    def WatchEvents(self, request: Any, context: Any) -> Iterator[Any]:
        lines = [
            ("round published", 1, '{"bytes_received": 4096, "metrics": [1], "seconds": 0.5}'),
            ("round\x1b[31m opened", 2, '{"asked": 3}'),
            ("run finished", 0, '{"failed": false, "reason": "all rounds are published"}'),
            ("never shown", 0, ""),
        ]
        for number, (kind, round_id, fields) in enumerate(lines, start=1):
            if number > request.after_event:
                yield admin_pb2.Event(
                    sequence=number,
                    unix_seconds=self.time,
                    kind=kind,
                    round=round_id,
                    fields_json=fields,
                )

    def StopRun(self, request: Any, context: Any) -> Any:
        self.stopped.append(request.now)
        return admin_pb2.StopRunReply(message="The run ends.")


@pytest.fixture
def admin():
    service = FakeAdmin()
    server = grpc.server(ThreadPoolExecutor(2))
    add_AdminServicer_to_server(service, server)
    port = server.add_secure_port("127.0.0.1:0", server_credentials())
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def call(admin, tmp_path):
    own = tmp_path / "operator.pem"
    write_secret(own, credentials("operator").to_pem())
    return [admin[1], "--operator", own]


def test_status(fedrec, call, admin):
    found = fedrec("status", *call, "--json").json
    assert set(found) == {
        "authority_heard", "awaited", "caution", "clients_here", "clients_in_roster",
        "clients_seen", "current", "disk_full", "epoch", "epsilon", "federation", "finish_reason",
        "finished", "last_event", "members", "next_epoch", "now",
        "protection", "protocol", "published_round", "quality", "rounds_abandoned",
        "rounds_planned", "rounds_published", "run", "stalled", "stop_asked", "unplaced",
        "waits_for",
    }  # fmt: skip
    assert found["current"]["arrived"] == 2
    assert found["awaited"] == ["hospital-b"]
    assert found["epsilon"] is None
    assert found["quality"] == {
        "round": 1, "at": 10, "loss": 0.25, "validation_hr": 0.1421, "validation_ndcg": 0.072,
        "test_hr": None, "test_ndcg": None,
    }  # fmt: skip
    out = fedrec("status", *call).out
    assert "HR@10 0.1421  NDCG@10 0.0720  (round 1)" in out
    assert "hospital-b" in out and "\ntest" not in out
    assert "1 of 62 published" in out
    assert "2 of 3 updates, 2 KiB" in out
    assert "stop " not in out
    admin[0].more = {"stop_asked": True}
    assert "asked for, the run ends with the round in progress" in fedrec("status", *call).out


def test_the_address_follows_from_kits(fedrec, call, tmp_path, monkeypatch):
    address, *operator = call
    folder = tmp_path / "operators"
    folder.mkdir()
    monkeypatch.chdir(folder)
    refused = fedrec("status", *operator)
    assert refused.code == 2 and "ADDRESS is missing" in refused.err
    host, _, port = address.rpartition(":")
    kits = {
        "coordinator/coordinator.toml": f'[coordinator]\nhost = "{host}"\nport = {port}\n',
        "clients/a/client.toml": f'[client]\ncoordinator = "{address}"\n',
    }
    for name, text in kits.items():
        path = folder / "kits" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        assert "1 of 62 published" in fedrec("status", *operator).out
    other = folder / "client.toml"
    other.write_text('[client]\ncoordinator = "elsewhere.example:7447"\n')
    refused = fedrec("stop", *operator)
    assert refused.code == 2 and address in refused.err and "elsewhere.example" in refused.err


def test_an_ipv6_address_of_a_kit_has_brackets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coordinator.toml").write_text('[coordinator]\nhost = "::1"\nport = 7447\n')
    assert address_of_kits() == "[::1]:7447"


def test_rates_have_the_protocol_and_what_is_to_be_said_of_it(fedrec, call, admin):
    unknown = "sampled (?): whether this flatters every method is not known"
    for note, shown in (
        ({"protocol": "full", "caution": ""}, "full"),
        ({"protocol": "sampled"}, unknown),
        ({"protocol": "sampled", "caution": "It flatters."}, "sampled (!): It flatters."),
    ):
        admin[0].measured_under = note
        assert f"\nprotocol    {shown}" in fedrec("status", *call).out
        first, *events = fedrec("watch", *call).out.splitlines()
        assert first.startswith(f"HR and NDCG are measured under {shown}")
        assert len(events) == 3, "what is as it was is not said again"
    # An older coordinator says nothing of it.
    admin[0].measured_under = {}
    assert "\nprotocol " not in fedrec("status", *call).out


MEMBERS = [
    admin_pb2.Member(
        name="hospital-b", state="stopped", heard=988.0, version="0.1.0", model=1, last_counted=1,
        bytes_counted=2048,
    ),
    admin_pb2.Member(name="hospital\x1b[31m-c", state="cannot_start", heard=900.0,
                     why="error [data] The data cannot be used"),
    admin_pb2.Member(name="hospital-d", state="away"),
    admin_pb2.Member(name="hospital-a", state="training", heard=1000.0, model=1),
]  # fmt: skip


def test_what_each_client_does(fedrec, call, admin):
    admin[0].more = {"members": MEMBERS, "clients_here": 1, "now": 1000.0}
    head, *lines = fedrec("clients", *call).out.splitlines()
    assert " ".join(head.split()) == "client state last heard fedrec model counted sent why"
    assert [line.split("  ")[0] for line in lines] == [
        "hospital-b", "hospital [31m-c", "hospital-d", "hospital-a",
    ]  # fmt: skip
    seen = [[cell for cell in line.split("  ") if cell.strip()] for line in lines]
    assert [cell.strip() for cell in seen[0][1:]] == [
        "stopped", "12 s ago", "0.1.0", "1", "round 1", "2 KiB",
    ]  # fmt: skip
    assert "can't start" in lines[1] and lines[1].endswith("error [data] The data cannot be used")
    found = fedrec("clients", *call, "--json").json
    assert set(found) == {"members", "now"}
    assert found == {key: fedrec("status", *call, "--json").json[key] for key in found}
    assert found["members"][0] == {
        "name": "hospital-b", "state": "stopped", "why": "", "heard": 988.0, "version": "0.1.0",
        "model": 1, "last_counted": 1, "bytes_counted": 2048,
    }  # fmt: skip
    out = fedrec("status", *call).out
    assert "1 of 4 in the roster are here, 1 away, 1 can't start, 1 stopped" in out
    assert "waits for   hospital-b (stopped 12 s ago)" in out
    admin[0].more["clients_in_roster"] = 7
    assert fedrec("clients", *call).out.splitlines()[-1] == "and 3 more clients"


def test_an_older_coordinator_tells_who_was_seen(fedrec, call):
    assert "3 heard since the coordinator started, of 4" in fedrec("status", *call).out
    assert fedrec("clients", *call, "--json").json == {"members": [], "now": 0.0}
    assert fedrec("clients", *call).out.startswith("This coordinator has an earlier release")


def test_the_operators_file_is_found_where_kits_have_it(fedrec, call, tmp_path, monkeypatch):
    address, own = call[0], Path(str(call[2]))
    monkeypatch.chdir(tmp_path)
    assert fedrec("status", address, "--json").json["published_round"] == 1
    kit = tmp_path / "kits" / "authority"
    kit.mkdir(parents=True)
    own.rename(kit / "operator.pem")
    assert fedrec("status", address, "--json").json["published_round"] == 1
    (kit / "operator.pem").unlink()
    refused = fedrec("status", address)
    assert refused.code != 0
    assert "operator.pem" in refused.err and "--operator" in refused.err


def test_a_round_that_waits_for_the_key_authority():
    heard = datetime.now().replace(hour=9, minute=12)
    status = admin_pb2.Status(
        federation="movies",
        run="abc",
        protection="bfv",
        authority_heard=heard.timestamp(),
        current=admin_pb2.RoundStatus(round=7, kind="train", phase="revealing"),
    )
    waits = "round 7 is complete and waits for the key authority, last heard 09:12"
    assert status_rows(RunStatus.of(status))[-1] == ("now", waits)
    before = heard - timedelta(days=3)
    status.authority_heard = before.timestamp()
    assert status_rows(RunStatus.of(status))[-1][1] == f"{waits} on {before:%Y-%m-%d}"
    status.authority_heard = 0.0
    seen = status_rows(RunStatus.of(status))[-1][1]
    assert seen.endswith("the key authority, not heard since the coordinator started")
    status.waits_for = "its newest folder: south reports round 9"
    problem = ("problem", "waits for its newest folder: south reports round 9")
    assert problem in status_rows(RunStatus.of(status)), "also while a round goes on"


def test_watch_ends_with_the_run(fedrec, call):
    lines = fedrec("watch", *call).out.splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "round 1 published",
        "round 2: round\x20[31m opened",
        "run finished",
    ]
    assert lines[0].endswith("4 KiB, 0.50 s")
    assert "metrics" not in lines[0]
    objects = fedrec("watch", *call, "--json", "--after", 2)
    assert objects.json["kind"] == "run finished"


@pytest.mark.parametrize("time", [-1.0, 1e300, float("nan")])
def test_watch_refuses_a_time_that_is_none(fedrec, call, admin, time):
    admin[0].time = time
    assert "An event's time is " in fedrec("watch", *call).err


def test_stop(fedrec, call, admin):
    assert fedrec("stop", *call, "--json").json == {"message": "The run ends."}
    assert fedrec("stop", *call, "--now").out == "The run ends.\n"
    assert admin[0].stopped == [False, True]


def test_what_a_pipe_gets_ends_where_the_words_do(fedrec, call):
    lines = fedrec("status", *call).out.splitlines()
    assert len({len(line) for line in lines}) > 2
    assert [line for line in lines if line != line.rstrip()] == []


def test_an_operators_file_that_does_not_fit_is_named(fedrec, admin, tmp_path):
    for name, raw in (
        ("odd", b"two\nlines"),
        ("client", credentials("client").private_key + credentials("operator").certificate * 2),
    ):
        write_secret(tmp_path / name, raw)
    for name in ("none", "odd", "client"):
        refused = fedrec("status", admin[1], "--operator", tmp_path / name)
        assert refused.code == 5 and "--operator" in refused.err


def test_no_answer_or_one_of_another_federation(fedrec, call, tmp_path):
    """gRPC has nothing to say on the terminal, and the remedy is about what an operator gave."""
    write_secret(tmp_path / "theirs.pem", credentials("operator", of="theirs").to_pem())
    for command, seen in (
        (("status", "127.0.0.1:1", *call[1:]), "127.0.0.1:1: Connection refused"),
        (
            ("stop", call[0], "--operator", tmp_path / "theirs.pem"),
            f"{call[0]}: The handshake failed: another authority issued the coordinator's",
        ),
        (
            ("watch", "nowhere.invalid:7", *call[1:]),
            "nowhere.invalid:7: The host name cannot be resolved",
        ),
    ):
        failed = fedrec(*command)
        assert failed.code == 3
        note, remedy = failed.err.splitlines()
        assert note.startswith(f"error [unreachable]: {seen}")
        assert "address" in remedy or "--operator" in remedy
        assert "client." not in failed.err
