"""Scenario 16, SLOWLORIS, by rule R12: streams that say nothing keep no other waiting."""

import asyncio
import os
import socket
import threading
from contextlib import ExitStack

import grpc
import pytest
from world.clock import poll
from world.engine import Bench, credentials
from world.serving import serving

from fedrec.errors import CorruptUpload, NotInRoster, TooLarge
from fedrec.wire.convert import UPLOAD_HEADER
from fedrec.wire.grpc_calls import from_rpc_error
from fedrec.wire.v1 import update_pb2
from fedrec_server.run.work import Work
from fedrec_server.service.call_guard import heard_in_time
from fedrec_server.uploads.incoming import StreamTurns

SUBMIT = "/fedrec.wire.v1.Coordinator/SubmitUpdate"


async def spoken(*pauses_and_sizes):
    """Yield messages of so many bytes, each after a pause."""
    for seconds, size in pauses_and_sizes:
        await asyncio.sleep(seconds)
        yield bytes(size)


def heard(*pauses_and_sizes, **limits):
    """Return the sizes of what is let through."""

    async def listen():
        parts = heard_in_time(spoken(*pauses_and_sizes), **limits)
        return [len(part) async for part in parts]

    return asyncio.run(listen())


class TestScenario16Time:
    def test_the_header_has_less_time_than_what_follows(self):
        assert heard((0, 1), (0.2, 1), first_seconds=0.05, silent_seconds=5) == [1, 1]
        with pytest.raises(CorruptUpload, match="silent for 0 seconds"):
            heard((0.2, 1), first_seconds=0.05, silent_seconds=5)

    def test_a_trickle_is_cut(self):
        trickle = [(0.02, 10)] * 20
        assert len(heard(*trickle, slowest_bytes=100, window_seconds=0.1)) == 20
        with pytest.raises(CorruptUpload, match="at least 5000 a second"):
            heard(*trickle, slowest_bytes=5000, window_seconds=0.1)

    def test_time_that_the_coordinator_takes_does_not_count(self):
        async def busy():
            parts = heard_in_time(
                spoken(*[(0.0, 1)] * 5), slowest_bytes=1e6, window_seconds=0.2, silent_seconds=0.1
            )
            found = 0
            async for _ in parts:
                await asyncio.sleep(0.15)
                found += 1
            return found

        assert asyncio.run(busy()) == 5


def test_scenario_16_places_are_given_in_order():
    async def crowd():
        places, served = StreamTurns(Work(), bytes_in_flight=8 << 20).places, []

        async def one(number):
            async with places:
                served.append(number)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(one(number) for number in range(6)))
        return served

    assert asyncio.run(crowd()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("n_streams", [200, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("says", ["nothing", "its header"])
def test_scenario_16_silent_streams_of_one_member_delay_no_other(tmp_path, n_streams, says):
    bench = Bench.of(4, minimum_clients=3)
    release = threading.Event()
    with serving(bench, tmp_path) as found, ExitStack() as open_:
        found.come(range(4))
        first = _header(found, 3) if says == "its header" else b""

        def silent():
            if first:
                yield first
            release.wait(60)

        open_.callback(release.set)
        channels = [open_.enter_context(found.channel(3)) for _ in range(n_streams // 40)]
        calls = [
            channels[n % len(channels)].stream_unary(SUBMIT).future(silent(), timeout=60)
            for n in range(n_streams)
        ]
        for number in range(3):
            assert not found.upload(number)
        refused = [call for call in calls if call.done()]
        assert len(refused) >= n_streams - 20
        assert {type(from_rpc_error(call.exception())) for call in refused} <= {
            TooLarge, CorruptUpload
        }  # fmt: skip
        for call in calls:
            call.cancel()


def test_scenario_16_silent_streams_of_a_stranger_are_refused_at_once(tmp_path):
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found:
        found.come(range(3))
        with found.channel(credentials(9)) as channel:
            waits = threading.Event()

            def silent():
                waits.wait(20)
                yield b""

            call = channel.stream_unary(SUBMIT).future(silent(), timeout=20)
            with pytest.raises(grpc.RpcError) as caught:
                call.result(10)
            waits.set()
            assert type(from_rpc_error(caught.value)) is NotInRoster
        for number in range(3):
            assert not found.upload(number)


def _header(found, number):
    payload = found.bench.payload(number, 1)
    header = found.bench.header(number, 1, payload, found.run)
    part = update_pb2.UploadPart(header=UPLOAD_HEADER.to_proto(header))
    return part.SerializeToString()


@pytest.mark.slow
def test_scenario_16_connections_that_never_finish_their_handshake(tmp_path):
    """Half-open ones and stalled handshakes: others are served, and no descriptor stays."""
    bench = Bench.of(3)
    with serving(bench, tmp_path) as found, ExitStack() as open_:
        host, _, port = found.address.rpartition(":")
        found.come(range(3))
        before = len(os.listdir("/proc/self/fd"))
        stalled = [
            open_.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)
        ]
        for number, one in enumerate(stalled):
            if number % 2:
                # The first bytes of a TLS record that never comes.
                one.sendall(b"\x16\x03\x01\x02")
        for number in range(3):
            assert not found.upload(number)
        engine = found.coordinator.engine
        found.do(engine.run.work.settled())
        assert engine.run.state.published == 1
        open_.close()
        # A moment, as gRPC lets go of them; they were accepted in this process.
        poll(lambda: len(os.listdir("/proc/self/fd")) <= before + 20)
