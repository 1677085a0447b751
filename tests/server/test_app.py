"""Starting, refusing to start, and stopping."""

import asyncio
import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from world.clock import FakeClock
from world.engine import Bench, authority, collect, identity, poll, running
from world.federation import made_data, prepare
from world.plans import plan_of
from world.serving import serving, settings_of

from fedrec.cli.main import main
from fedrec.errors import FolderInUse, KeysError, SettingsError, StorageError
from fedrec.identity.certificates import Credentials, Issuer
from fedrec.identity.document import write_secret
from fedrec.ids import ClientId, RoundId
from fedrec.plan.agreement import FORMS
from fedrec.privacy import BUDGET_SPENT
from fedrec.settings.validation import load_settings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Wait
from fedrec_server.app import Coordinator
from fedrec_server.federation import Federation, PublicCatalogue
from fedrec_server.rounds.endings import finish
from fedrec_server.store import sqlite
from fedrec_server.store.durable_files import DiskFull, DurabilityLost
from fedrec_server.store.sqlite import SqliteStore

TESTS = Path(__file__).parents[1]

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from world.engine import Bench, credentials, identity
from world.serving import settings_of
from fedrec.identity.document import write_secret
from fedrec_server.app import Coordinator

me = identity(0).client_id
bench, folder = Bench.of(3), Path(sys.argv[1])
(folder / "client.pem").unlink(missing_ok=True)
(folder / "coordinator.pem").unlink(missing_ok=True)
write_secret(folder / "client.pem", credentials(0).to_pem())
coordinator = Coordinator(settings_of(folder), bench.federation)
serving = coordinator.serve(lambda address, run: print(json.dumps([address, run, me]), flush=True))
print("ended:", asyncio.run(serving))
"""


def start_program(folder):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def address_line(program):
    """Return the line with address and run; others are log lines."""
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("["):
            found: list[str] = json.loads(line)
            return found
    raise AssertionError("the program ended early")


def test_port_in_use_is_named(tmp_path, capfd):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with serving(Bench.of(3), first) as found:
        port = int(found.address.rpartition(":")[2])
        other = Coordinator(settings_of(second, port=port), Bench.of(3).federation)
        with pytest.raises(SettingsError, match=r"coordinator\.port"):
            asyncio.run(other.start())
    assert capfd.readouterr().err == "", "the library says nothing of its own"


def _no_room_beside_the_log(monkeypatch):
    """Fail as SQLite does on a disk that has not one page left for the file beside its log."""

    def connect(path):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr(sqlite, "_connect", connect)
    usage = shutil.disk_usage("/")._replace(free=4096)
    monkeypatch.setattr(sqlite.shutil, "disk_usage", lambda folder: usage)


def _no_room_for_a_word(monkeypatch):
    def pwrite(file, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("fill", [_no_room_beside_the_log, _no_room_for_a_word])
def test_a_disk_without_a_page_at_the_start_is_called_full(tmp_path, monkeypatch, fill):
    bench = Bench.of(3)
    with monkeypatch.context() as full:
        fill(full)
        with pytest.raises(StorageError, match=r"no space .*has ended, and no data is lost"):
            asyncio.run(Coordinator(settings_of(tmp_path), bench.federation).serve(_no_rounds))
    # With space it starts in the same folder.
    with serving(bench, tmp_path) as found:
        assert found.coordinator.engine.run.state.published == 0


def _no_rounds(address, run):
    """Be told where the coordinator listens."""


def test_a_full_disk_at_the_start_ends_the_coordinator_and_says_so(tmp_path):
    """Nothing there would go on by itself."""

    def failpoint(name):
        if name == "rows.begin":
            raise DiskFull("The disk is full.")

    bench = Bench.of(3)
    full = Coordinator(settings_of(tmp_path), bench.federation, failpoint=failpoint)
    with pytest.raises(StorageError, match=r"^The disk is full\. The coordinator has ended.*again"):
        asyncio.run(full.serve(lambda *_: None))
    with serving(bench, tmp_path) as found:
        assert found.address


def test_damage_that_shows_at_the_start_is_no_defect(tmp_path):
    """Deeper than SQLite's quick check looks."""

    def failpoint(name):
        if name == "rows.begin":
            raise DurabilityLost("coordinator.sqlite is damaged: malformed.")

    bench = Bench.of(3)
    broken = Coordinator(settings_of(tmp_path), bench.federation, failpoint=failpoint)
    with pytest.raises(StorageError, match=r"coordinator\.sqlite is damaged.*Check the disk"):
        asyncio.run(broken.serve(lambda *_: None))


def test_state_folder_in_use_is_named(tmp_path):
    with serving(Bench.of(3), tmp_path) as found:
        other = Coordinator(settings_of(tmp_path), found.bench.federation)
        with pytest.raises(FolderInUse, match=r"coordinator\.state.*process"):
            asyncio.run(other.start())


def test_what_the_coordinator_shows_is_checked_before_anything_is_opened(tmp_path):
    def refused(**changes):
        with pytest.raises(KeysError) as refusal:
            Coordinator(settings_of(tmp_path, **changes), Bench.of(3).federation)
        return str(refusal.value)

    assert "coordinator.certificate" in refused(certificate="missing.pem")
    other = Issuer.create().credentials("coordinator", "localhost", hosts=["localhost"])
    write_secret(tmp_path / "other.pem", other.to_pem())
    assert "different authorities" in refused(certificate=str(tmp_path / "other.pem"))
    ended = datetime.now(UTC) - timedelta(days=4000)
    old = authority().issuer.credentials("coordinator", "localhost", now=ended)
    write_secret(tmp_path / "old.pem", old.to_pem())
    refusal = refused(certificate=str(tmp_path / "old.pem"))
    assert "coordinator.certificate" in refusal and "clock" in refusal
    assert "coordinator.operators" in refused(operators=str(tmp_path / "other.pem" / "none"))
    (tmp_path / "empty.crt").write_text("")
    assert "has no certificate" in refused(operators=str(tmp_path / "empty.crt"))
    assert not (tmp_path / "state").exists()


def test_stop_answers_long_polls_and_keeps_the_run(tmp_path):
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        run = found.run
        answers = []

        def wait():
            with found.link() as link:
                me = identity(0).client_id
                answers.append(link.next_task(me, run, RoundId(0), wait_seconds=60.0))

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: bool(found.coordinator.engine.run.presence.waiters))
        found.stop(grace_seconds=10.0)
        waiting.join(10)
        assert isinstance(answers[0].task, Wait) and "stops" in answers[0].task.reason
    with serving(bench, tmp_path) as found:
        assert found.run == run


def until(condition):
    """Wait for another thread."""
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "interrupted")]
)
def test_signal_ends_the_process_in_order(tmp_path, number, ending):
    with start_program(tmp_path) as program:
        address, _, client_id = address_line(program)
        own = Credentials.load(tmp_path / "client.pem", "the test")
        with GrpcLink(address, own) as link:
            assert link.federation(ClientId(client_id)).published_round == 0
        program.send_signal(number)
        output, errors = program.communicate(timeout=20)
        assert program.returncode == 0, errors
        assert f"ended: {ending}" in output


def test_a_resumed_run_is_served_until_it_really_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrec_server.app.SILENCE_SECONDS", 0.0)
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        found.do(found.coordinator.engine.stop_run(at_once=True))

    def ignore(address, run):
        pass

    async def over():
        ended = Coordinator(settings_of(tmp_path), bench.federation)
        return await asyncio.wait_for(ended.serve(ignore, until_finished=True), 10)

    assert asyncio.run(over()) == "finished"

    async def resumed():
        server = Coordinator(settings_of(tmp_path), bench.federation, resume=True)
        running = asyncio.ensure_future(server.serve(ignore, until_finished=True))
        done, _ = await asyncio.wait([running], timeout=0.5)
        assert not done, "it ended although the run goes on"
        await server.engine.stop_run(at_once=True)
        return await asyncio.wait_for(running, 10)

    assert asyncio.run(resumed()) == "finished"


async def end(run, reason, *, failed):
    async with run.lock:
        await run.commit(*finish(run.state, reason, failed, run.clock.now()))


@pytest.mark.parametrize(
    ("reason", "failed", "ending"),
    [
        ("all rounds are published", False, "finished"),
        (f"{BUDGET_SPENT}: 3 noisy sums, epsilon 1", True, "spent"),
        ("nothing is left to train", True, "failed"),
    ],
)
def test_how_the_run_ended_is_told(tmp_path, monkeypatch, reason, failed, ending):
    monkeypatch.setattr("fedrec_server.app.SILENCE_SECONDS", 0.0)
    bench = Bench.of(3)

    async def over():
        server, started = Coordinator(settings_of(tmp_path), bench.federation), asyncio.Event()
        serving = asyncio.ensure_future(
            server.serve(lambda address, run: started.set(), until_finished=True)
        )
        await started.wait()
        await end(server.engine.run, reason, failed=failed)
        return await asyncio.wait_for(serving, 10)

    assert asyncio.run(over()) == ending

    async def again():
        server = Coordinator(settings_of(tmp_path), bench.federation)
        return await server.serve(lambda address, run: None, until_finished=True)

    assert asyncio.run(again()) == ending, "a restart says the same"


@asynccontextmanager
async def until_finished(bench, folder, clock=None):
    """Serve until the run's end; yield the coordinator and what `serve` returns."""
    server = Coordinator(settings_of(folder), bench.federation, clock=clock)
    started = asyncio.Event()
    serving = asyncio.ensure_future(
        server.serve(lambda address, run: started.set(), until_finished=True)
    )
    try:
        async with asyncio.timeout(20):
            await started.wait()
            yield server, serving
    finally:
        serving.cancel()


def impatient(monkeypatch, *, silence_seconds):
    monkeypatch.setattr("fedrec_server.app._SECONDS_BETWEEN_REPORTS", 0.0)
    monkeypatch.setattr("fedrec_server.app.TICK_SECONDS", 0.01)
    monkeypatch.setattr("fedrec_server.app.SILENCE_SECONDS", silence_seconds)


async def until_waiting(events, n):
    """Wait until the coordinator waits for some clients."""
    while not any(event.get("clients") == n for event in events):
        await asyncio.sleep(0.01)


def missed(events):
    return [one["clients"] for one in events if one["event"] == "clients missed the end"]


async def test_it_ends_once_its_members_took_the_end_and_said_goodbye(tmp_path, monkeypatch):
    impatient(monkeypatch, silence_seconds=1e9)
    bench, here = Bench.of(3), [identity(number).client_id for number in (0, 1)]
    with structlog.testing.capture_logs() as events:
        async with until_finished(bench, tmp_path) as (server, serving):
            engine = server.engine
            # The third one never came. The first one stops, and comes back after the end.
            for one in here:
                engine.run.presence.heard(one)
            engine.polls.end(here[0], "")
            await end(engine.run, "all rounds are published", failed=False)
            for n in (2, 1):
                await until_waiting(events, n)
                await poll(engine, 2 - n)
                engine.polls.end(here[2 - n], "")
            assert await serving == "finished"
    assert missed(events) == []


async def test_silence_ends_the_wait_and_a_goodbye_of_before_the_end_is_none_of_after(
    tmp_path, monkeypatch
):
    impatient(monkeypatch, silence_seconds=30.0)
    bench, clock = Bench.of(4), FakeClock()
    with structlog.testing.capture_logs() as events:
        async with until_finished(bench, tmp_path, clock) as (server, serving):
            engine = server.engine
            for number in range(3):
                engine.run.presence.heard(identity(number).client_id)
            engine.polls.end(identity(1).client_id, "")
            await end(engine.run, "all rounds are published", failed=False)
            await until_waiting(events, 3)
            # It has the final version, and computes.
            await poll(engine, 0)
            clock.advance(30.0)
            assert await serving == "finished"
    assert missed(events) == [2]


async def test_a_restarted_coordinator_waits_for_clients_counted_before(tmp_path, monkeypatch):
    impatient(monkeypatch, silence_seconds=0.0)
    bench = Bench.of(4)
    async with running(bench, tmp_path) as engine:
        await collect(engine, bench, range(3))
        assert engine.run.state.published == 1
    with structlog.testing.capture_logs() as events:
        async with until_finished(bench, tmp_path) as (server, serving):
            server.engine.run.presence.heard(identity(0).client_id)
            await server.engine.stop_run(at_once=True)
            assert await serving == "finished"
    assert missed(events) == [3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_in_the_wait_leaves_the_end_of_the_run(tmp_path, monkeypatch, number):
    impatient(monkeypatch, silence_seconds=1e9)
    bench = Bench.of(3)
    async with until_finished(bench, tmp_path) as (server, serving):
        server.engine.run.presence.heard(identity(0).client_id)
        await end(server.engine.run, f"{BUDGET_SPENT}: 3 noisy sums, epsilon 1", failed=True)
        os.kill(os.getpid(), number)
        assert await serving == "spent"


async def test_a_bug_in_the_wait_is_no_end_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Coordinator, "_farewells", lambda self, members: 1 / 0)
    bench = Bench.of(3)
    async with until_finished(bench, tmp_path) as (server, serving):
        await server.engine.stop_run(at_once=True)
        with pytest.raises(ZeroDivisionError):
            await serving


@pytest.mark.parametrize(
    ("ending", "code"),
    [("finished", 0), ("terminated", 0), ("failed", 1), ("spent", 4), ("interrupted", 130)],
)
def test_the_command_ends_with_its_result_and_the_documented_code(
    tmp_path, monkeypatch, capsys, ending, code
):
    async def serve(*values, **options):
        return ending

    monkeypatch.setattr(Coordinator, "serve", serve)
    monkeypatch.setattr("fedrec.telemetry.log_to_stderr", lambda **_: None)
    plan = plan_of(algorithm={"dim": 4}, protection={"name": "bfv"})
    workspace = prepare(tmp_path, plan, made_data(), n_clients=3)
    with pytest.raises(SystemExit) as left:
        main(["coordinator", "run", str(workspace.parties.coordinator), "--json"])
    assert (left.value.code or 0) == code
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"ending": ending}
    assert ("To resume: " in shown.err) == (ending == "interrupted")


@pytest.mark.parametrize("form", FORMS)
def test_a_coordinator_keeps_the_form_of_the_run_in_its_folder(tmp_path, form):
    plan = plan_of(algorithm={"dim": 4}, protection={"name": "bfv"})
    workspace = prepare(tmp_path, plan, made_data(), n_clients=3)
    settings = load_settings(workspace.parties.coordinator)
    catalogue = PublicCatalogue.load(Path(settings.data.catalogue))
    vectors = RoundVectors.of(settings.plan, catalogue.n_items)

    def made():
        return Coordinator.from_settings(settings, catalogue, vectors, accept_exposure=True)

    keys = made()._federation.keys
    begun = Federation.of(settings.plan.in_form(form), catalogue, vectors, keys)
    SqliteStore(Path(settings.coordinator.state), begun.identity).close()
    found = made()._federation
    assert (found.plan.form, found.plan_fingerprint) == (form, begun.plan_fingerprint)
    # The folder takes it for its own run.
    SqliteStore(Path(settings.coordinator.state), found.identity).close()


def test_server_imports_neither_torch_nor_client():
    script = (
        "import sys, pkgutil, importlib, fedrec_server\n"
        "for found in pkgutil.walk_packages(fedrec_server.__path__, 'fedrec_server.'):\n"
        "    importlib.import_module(found.name)\n"
        "import fedrec.data.catalogue\n"
        "bad = {'torch', 'fedrec_client', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
