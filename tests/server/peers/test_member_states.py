"""Members' states, what is remembered of their updates, and the epoch that a run starts with."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from world.clock import FakeClock
from world.engine import (
    Bench,
    authority,
    credentials,
    gather,
    identity,
    operator,
    poll,
    running,
    upload,
    wait,
)
from world.federation import keep, made_data, prepare, rotate
from world.plans import plan_of
from world.serving import serving, settings_of

from fedrec.errors import (
    DamagedFile,
    FedrecError,
    KeysError,
    NotInRoster,
    StateWentBack,
    VersionMismatch,
    WrongIdentity,
)
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.settings.validation import load_settings
from fedrec.training.round_vectors import RoundVectors
from fedrec.wire.admin_link import AdminLink, RunStatus
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import Remembered, Wait
from fedrec.wire.v1 import coordinator_pb2
from fedrec.wire.v1.coordinator_pb2_grpc import CoordinatorStub
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_lab.audit.wire.known import Known
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue
from fedrec_server.peers.member_states import STARTING_SECONDS
from fedrec_server.run.presence import LIVE_SECONDS
from fedrec_server.run_status import status_of


def label(number):
    return identity(number).public.label


def status(engine):
    return RunStatus.of(status_of(engine, last_event=0))


def of(engine, number):
    """Return what is told of a client."""
    return next(one for one in status(engine).members if one.name == label(number))


async def test_what_a_client_does_from_its_start_to_its_end(tmp_path):
    bench, clock = Bench.of(3, reveals=True), FakeClock()
    me = identity(2).client_id

    async with running(bench, tmp_path, clock=clock) as engine:
        presence = engine.run.presence
        seen = of(engine, 2)
        assert (seen.state, seen.why) == ("away", "not heard from since the coordinator started")
        assert seen.heard == 0.0
        presence.joined(me, "0.2.0")
        seen = of(engine, 2)
        assert (seen.state, seen.version, seen.heard) == ("starting", "0.2.0", clock.now())
        clock.advance(STARTING_SECONDS + 1)
        seen = of(engine, 2)
        assert seen.state == "away" and seen.why.startswith("joined 10 min ago")
        presence.heard(me)
        assert of(engine, 2).state == "waiting"
        await gather(engine, range(3))
        for number in range(3):
            await poll(engine, number)
        assert [of(engine, number).state for number in range(3)] == ["training"] * 3
        for number in range(2):
            await upload(engine, bench, number)
        assert [of(engine, number).state for number in range(3)] == [
            "waiting", "waiting", "training",
        ]  # fmt: skip
        # It trains without a call, for as long as the round waits for it.
        clock.advance(LIVE_SECONDS + 1)
        assert of(engine, 2).state == "training"
        with capture_logs() as lines:
            engine.polls.end(me, "")
        assert [line.keys() - {"event", "log_level"} for line in lines] == [{"run", "client"}]
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        found = status(engine)
        assert [one.state for one in found.members] == ["stopped", "waiting", "waiting"]
        assert found.members[0].name == label(2) and found.clients_here == 2
        assert (found.members[0].heard, found.now) == (clock.now(), clock.now())
        assert found.awaited == (label(2),)
        presence.heard(me)
        assert of(engine, 2).state == "training"
        assert not found.stop_asked
        await engine.stop_run(at_once=False)
        assert status(engine).stop_asked and not status(engine).finished


async def test_who_is_killed_is_away_once_the_round_is_over_or_it_fell_silent(tmp_path):
    bench, clock = Bench.of(3, minimum_clients=2, deadline_seconds=100), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        await gather(engine, range(3))
        for number in range(3):
            await poll(engine, number)
        for number in range(2):
            await upload(engine, bench, number)
        clock.advance(99)
        assert of(engine, 2).state == "training"
        clock.advance(2)
        await engine.tick()
        for number in range(2):
            engine.run.presence.heard(identity(number).client_id)
        found = status(engine)
        assert found.members[0].state == "away" and found.members[0].name == label(2)
        assert (found.clients_here, found.clients_seen) == (2, 3)
        counted = of(engine, 0)
        assert (counted.last_counted, counted.bytes_counted) == (1, len(bench.payload(0, 1)))
        assert (of(engine, 2).last_counted, of(engine, 2).bytes_counted) == (0, 0)
    async with running(bench, tmp_path, clock=clock) as engine:
        assert of(engine, 0).last_counted == 1, "it outlives a restart"
        assert of(engine, 0).bytes_counted == len(bench.payload(0, 1))
        assert of(engine, 0).state == "away"


def test_who_did_not_answer_a_round_that_was_given_up_is_away(tmp_path):
    bench, clock = Bench.of(3, deadline_seconds=20, minimum_clients=3), FakeClock()

    async def scenario():
        async with running(bench, tmp_path, clock=clock) as engine:
            await gather(engine, range(3))
            await poll(engine, 2)
            for number in range(2):
                await upload(engine, bench, number)
            clock.advance(21)
            await engine.tick()
            seen = of(engine, 2)
            return seen.state, seen.why

    assert asyncio.run(scenario()) == ("away", "did not answer in the abandoned round")


async def test_members_of_a_paused_cell(tmp_path):
    bench, clock = Bench.of(6, reveals=True), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        run = engine.run
        run.state = replace(run.state, rules=run.state.rules.without([2]))
        for number in (3, 4):
            run.presence.heard(identity(number).client_id)
        assert [of(engine, number).state for number in (3, 4, 5)] == [
            "paused", "paused", "away",
        ]  # fmt: skip
        assert of(engine, 3).why.startswith("cell 2: waits for the key authority")


async def test_a_goodbye_answers_what_its_client_waits_for(tmp_path):
    bench = Bench.of(3, reveals=True)
    me = identity(0).client_id

    async with running(bench, tmp_path) as engine:
        waiting = asyncio.ensure_future(wait(engine, 0))
        while me not in engine.run.presence.waiters:
            await asyncio.sleep(0)
        engine.polls.end(me, "")
        task = await asyncio.wait_for(waiting, 10)
        assert task.task == Wait()
        assert me not in engine.run.presence.live(), "its last answer does not bring it back"
        assert of(engine, 0).state == "stopped"
        await poll(engine, 0)
        assert of(engine, 0).state == "waiting"


def test_a_client_says_goodbye_for_itself_alone(tmp_path):
    stranger = authority().issuer.credentials("client", "stranger")
    with (
        serving(Bench.of(3), tmp_path) as server,
        closing(AdminLink(server.address, operator())) as admin,
    ):
        server.come(range(3))
        with server.link(0) as link, pytest.raises(WrongIdentity):
            link.goodbye(identity(1).client_id, "")
        with server.link(stranger) as link, pytest.raises(NotInRoster):
            link.goodbye(identity(1).client_id, "")
        with server.link(0) as link, pytest.raises(FedrecError, match="code of an error"):
            link.goodbye(identity(0).client_id, "Any words!")
        assert admin.status().clients_here == 3
        with server.link(1) as link:
            link.goodbye(identity(1).client_id, "")
        found = admin.status()
        assert (found.clients_here, found.members[0].name) == (2, label(1))
        assert found.members[0].state == "stopped"


def test_why_a_client_cannot_start(tmp_path):
    with (
        serving(Bench.of(3), tmp_path) as server,
        closing(AdminLink(server.address, operator())) as admin,
    ):
        with GrpcLink(server.address, credentials(0)) as link:
            link.federation(identity(0).client_id)
            link.goodbye(identity(0).client_id, "plan_mismatch")
        with GrpcLink(server.address, credentials(1)) as link:
            link.goodbye(identity(1).client_id, "of_a_later_release")
        with server.channel(2) as channel:
            request = coordinator_pb2.GetFederationRequest(
                protocol_version="7.0", client_id=identity(2).client_id, release="0.0.9"
            )
            with pytest.raises(Exception) as refused:
                CoordinatorStub(channel).GetFederation(request, timeout=20)
            assert isinstance(from_rpc_error(refused.value), VersionMismatch)
        found = admin.status()
    seen = {one.name: one for one in found.members}
    assert {one.state for one in found.members} == {"cannot_start"}
    assert seen[label(0)].why == (
        "error [plan_mismatch] The settings, the users or the state folder don't match the run"
    )
    assert seen[label(1)].why == "error [of_a_later_release]"
    assert seen[label(2)].why.startswith("error [version_mismatch] The peer uses another")
    assert seen[label(2)].version == "0.0.9"
    assert "stopped" in found.waits_for and "[plan_mismatch]" in found.waits_for


async def test_a_client_that_remembers_another_update_is_told_at_once(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        await gather(engine, range(3))
        assert (await poll(engine, 0)).latest is None
        await upload(engine, bench, 0)
        seen = await poll(engine, 0)
        assert seen.latest is not None and seen.latest.header is not None
        header = seen.latest.header
        assert (header.round, header.client_id) == (1, identity(0).client_id)
        assert (await wait(engine, 0, seconds=0.0)).latest is None
        # Of another digest, of a later round, and of nothing that was ever sent.
        for other in (
            Remembered(acknowledged_round=RoundId(1), acknowledged_digest=b"x" * 32),
            Remembered(),
        ):
            me = identity(0).client_id
            with capture_logs() as logs:
                found = await engine.polls.next_task(me, engine.run.name, RoundId(0), 60.0, other)
            assert found.latest == seen.latest
            (line,) = logs
            assert (line["event"], line["client"]) == (
                "client remembers another update", identity(0).public.label,
            )  # fmt: skip
            assert (line["remembered_round"], line["held_round"]) == (other.acknowledged_round, 1)
        await engine.stop_run(at_once=True)
    async with running(bench, tmp_path) as engine:
        # The round was given up, and the process is another one.
        assert engine.run.state.published == 0
        assert (await poll(engine, 0)).latest == seen.latest
        assert (await poll(engine, 1)).latest is None


async def test_it_knows_nothing_of_who_says_it_was_acknowledged(tmp_path):
    bench = Bench.of(3)

    async with running(bench, tmp_path) as engine:
        text = Remembered(acknowledged_round=RoundId(4), acknowledged_digest=b"x" * 32)
        me = identity(0).client_id
        found = await engine.polls.next_task(me, engine.run.name, RoundId(0), 60.0, text)
        assert found.latest is not None and found.latest.header is None


def test_a_coordinator_that_was_set_back_ends(tmp_path):
    made = Coordinator(settings_of(tmp_path), Bench.of(3).federation)

    def proved(address, run):
        made.engine.rollbacks.halt(RoundId(4))

    with pytest.raises(StateWentBack, match="older than the run") as seen:
        asyncio.run(made.serve(proved))
    assert "newest folder" in seen.value.remedy


PLAN = plan_of(algorithm={"dim": 4}, protection={"name": "bfv"})


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "federation").mkdir()
    return prepare(tmp_path / "federation", PLAN, made_data(), n_clients=3)


@pytest.fixture
def settings(workspace):
    found = load_settings(workspace.parties.coordinator)
    local = found.coordinator.model_copy(update={"reserve_bytes": 0, "port": 0})
    return found.model_copy(update={"coordinator": local})


@pytest.fixture
def second(workspace):
    """The next epoch, made in the authority's folder; its file stays as it was."""
    first = workspace.epoch.read_bytes()
    made = rotate(AuthorityFolder(workspace.epoch.parent))
    workspace.epoch.write_bytes(first)
    return made


def started(settings, *install):
    """Start a coordinator, hand epochs in, stop it; return the epoch that it was in at last."""
    assert settings.data.catalogue is not None
    catalogue = PublicCatalogue.load(Path(settings.data.catalogue))
    spec = RoundVectors.of(settings.plan, catalogue.n_items)
    server = Coordinator.from_settings(settings, catalogue, spec)

    async def life():
        await server.start()
        try:
            for keys in install:
                await server.engine.rotation.install(keys.to_json())
            return server.engine.run.federation.keys
        finally:
            await server.stop(grace_seconds=0.0)

    return asyncio.run(life())


def bundles(settings):
    folder = Path(settings.coordinator.state) / "epochs"
    return [KeyEpoch.from_json(path.read_bytes()) for path in sorted(folder.iterdir())]


def test_an_installed_epoch_makes_the_file_superfluous(settings, second, workspace):
    first = KeyEpoch.load(workspace.epoch)
    assert started(settings, second) == second
    workspace.epoch.unlink()
    assert started(settings) == second
    secret = first.to_json().split(b'"sealed_secret"')[1][:200]
    state = Path(settings.coordinator.state)
    kept = [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    assert kept and not any(secret in content for content in kept)
    assert Known.of(settings).context == second.server_context


def test_a_newer_file_takes_the_place_of_what_was_installed(settings, second, workspace):
    assert started(settings, second) == second
    third = rotate(AuthorityFolder(workspace.epoch.parent))
    assert KeyEpoch.load(workspace.epoch) == third
    assert started(settings) == third
    assert bundles(settings) == [third], "nothing of the second epoch is kept"
    workspace.epoch.unlink()
    assert started(settings) == third


def test_a_file_of_another_authority_is_refused(settings, second, workspace, tmp_path):
    assert started(settings, second) == second
    other = AuthorityFolder(tmp_path / "other")
    people = [Identity.create(name).public for name in "abc"]
    for number in (1, 2, 9):
        keep(other, other.begin(PLAN, 30).of_exactly(people, 100))
        rotate(other, number=number).save(workspace.epoch)
        with pytest.raises(KeysError):
            started(settings)
    workspace.epoch.unlink()
    assert started(settings) == second, "what was refused changed nothing"


def test_without_file_and_installed_epoch_there_is_nothing_to_start_from(settings, workspace):
    workspace.epoch.unlink()
    with pytest.raises(KeysError, match=r"epoch\.json does not exist"):
        started(settings)


def test_a_damaged_bundle_is_named(settings, second, workspace):
    started(settings, second)
    workspace.epoch.unlink()
    (bundle,) = (Path(settings.coordinator.state) / "epochs").iterdir()
    bundle.write_bytes(b"{}")
    with pytest.raises(DamagedFile, match="damaged"):
        started(settings)
