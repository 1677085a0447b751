"""The coordinator's metrics, and how they are served."""

import asyncio
import socket
import urllib.request

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from world.clock import FakeClock
from world.engine import Bench, gather, identity, play, running, speak, upload
from world.serving import serving, settings_of

from fedrec.errors import FedrecError, NotInRoster, SettingsError, StorageError
from fedrec.evaluation.metrics import Rates
from fedrec.ids import RoundId
from fedrec.settings.schema import CoordinatorSettings
from fedrec_server.app import Coordinator
from fedrec_server.metrics import CoordinatorMetrics
from fedrec_server.run.figures import ModelQuality


def watched(engine, folder):
    local = CoordinatorSettings(state=str(folder), reserve_bytes=1 << 20)
    metrics = CoordinatorMetrics(engine, local, certificate_ends=5000.0)

    def value(name, **labels):
        return metrics.registry.get_sample_value(name, labels)

    return metrics, value


async def test_a_round_step_by_step(tmp_path):
    bench, clock = Bench.of(3, reveals=True), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        metrics, value = watched(engine, tmp_path)

        def look():
            clock.advance(1.0)
            metrics.tick()

        engine.run.presence.heard(identity(0).client_id)
        look()
        assert value("fedrec_clients_connected") == 1
        assert value("fedrec_roster_clients") == 3
        assert value("fedrec_awaited_clients") == 2
        await gather(engine, range(3))
        look()
        assert value("fedrec_awaited_clients") == 3, "none of them has sent"
        await upload(engine, bench, 0)
        look()
        assert value("fedrec_awaited_clients") == 2
        assert await upload(engine, bench, 0), "the same once more"
        clock.advance(4.0)
        await upload(engine, bench, 1)
        await upload(engine, bench, 2)
        await engine.run.work.settled()
        look()
        assert value("fedrec_rounds_revealing") == 1
        assert value("fedrec_awaited_clients") == 0, "the key authority has the next word"
        assert value("fedrec_updates_total", outcome="counted") == 3
        size = len(bench.payload(0, 1))
        assert value("fedrec_update_size_bytes_sum") == 3 * size
        # A second for each look since it opened, and the four in between.
        name = "fedrec_round_duration_seconds_sum"
        assert value(name, phase="collecting") == pytest.approx(6.0)
        clock.advance(2.0)
        await speak(engine, bench)
        await engine.run.work.settled()
        look()
        assert value(name, phase="revealing") == pytest.approx(3.0)
        assert value("fedrec_rounds_total", outcome="published") == 1
        assert value("fedrec_rounds_total", outcome="abandoned") == 0
        assert value("fedrec_run_published_rounds") == 1
        assert value("fedrec_run_planned_rounds") == 3
        assert value("fedrec_authority_heard_timestamp_seconds") == clock.now() - 1.0


async def test_a_run_that_stalls_and_one_that_ends(tmp_path):
    bench, clock = Bench.of(3, deadline_seconds=60.0), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        metrics, value = watched(engine, tmp_path)
        for _ in range(40):
            await gather(engine, range(3))
            clock.advance(61.0)
            await engine.tick()
            metrics.tick()
            if value("fedrec_run_stalled"):
                break
        abandoned = engine.run.state.abandoned
        assert abandoned > 1
        assert value("fedrec_run_stalled") == 1
        assert value("fedrec_rounds_total", outcome="abandoned") == abandoned
        clock.advance(600.0)
        await play(engine, bench, range(3))
        clock.advance(2.0)
        metrics.tick()
        assert engine.run.state.ending is not None
        assert value("fedrec_run_stalled") == 0
        assert value("fedrec_run_finished") == 1
        assert value("fedrec_run_failed") == 0
        assert value("fedrec_awaited_clients") == 0


async def test_refused_calls_are_counted_by_code(tmp_path):
    async with running(Bench.of(3), tmp_path) as engine:
        metrics, value = watched(engine, tmp_path)
        metrics.refused("/fedrec.wire.v1.Coordinator/SubmitUpdate", NotInRoster("no"))
        metrics.refused("/fedrec.wire.v1.Coordinator/NextTask", NotInRoster("no"))
        metrics.refused("/fedrec.wire.v1.Coordinator/NextTask", StorageError("secret"))
        metrics.refused("/fedrec.wire.v1.Coordinator/NextTask", ZeroDivisionError())
        name = "fedrec_calls_refused_total"
        assert value(name, code=NotInRoster.code) == 2
        assert value(name, code=StorageError.code) == 1
        assert value(name, code="internal") == 1
        assert value("fedrec_updates_total", outcome="refused") == 1


async def test_no_label_and_no_line_names_any_client(tmp_path):
    bench, clock = Bench.of(3), FakeClock()

    async with running(bench, tmp_path, clock=clock) as engine:
        metrics, value = watched(engine, tmp_path)
        await play(engine, bench, range(3))
        rates = Rates(users=40, hr=0.25, recall=0.25, ndcg=0.125, mrr=0.1)
        engine.quality.quality = ModelQuality(round=RoundId(2), loss=0.5, validation=rates)
        clock.advance(2.0)
        metrics.tick()
        assert value("fedrec_hit_ratio", split="validation") == 0.25
        assert value("fedrec_ndcg", split="validation") == 0.125
        assert value("fedrec_ndcg", split="test") is None, "not measured is not zero"
        assert value("fedrec_training_loss") == 0.5
        families = list(metrics.registry.collect())
        labels = {name for family in families for one in family.samples for name in one.labels}
        assert labels == {"outcome", "phase", "code", "split", "le", "version", "party"}
        text = generate_latest(metrics.registry).decode()
        for number in range(3):
            public = identity(number).public
            assert public.client_id[:8] not in text and public.label not in text
        assert value("fedrec_rounds_total", outcome="published") == 3
        assert value("fedrec_certificate_expiry_timestamp_seconds") == 5000.0
        assert value("fedrec_disk_reserve_bytes") == 1 << 20


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def at(address):
    return lambda settings: settings.model_copy(update={"metrics_address": address})


def test_numbers_are_served_while_the_coordinator_runs(tmp_path):
    address = free_address()
    with serving(Bench.of(3), tmp_path, prepare=at(address)) as server:
        with server.link(0) as link, pytest.raises(FedrecError):
            link.next_task(identity(0).client_id, "another run", RoundId(0), wait_seconds=0.0)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        samples = {
            (one.name, *one.labels.values()): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }
        refused = {
            key[1]: value for key, value in samples.items() if "calls_refused_total" in key[0]
        }
        assert sum(refused.values()) == 1
        assert samples["fedrec_roster_clients",] == 3
        assert samples["fedrec_certificate_expiry_timestamp_seconds",] > 1.7e9
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=10)


def test_a_port_that_is_taken_starts_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        coordinator = Coordinator(
            settings_of(tmp_path, metrics_address=address), Bench.of(3).federation
        )
        with pytest.raises(SettingsError, match=r"coordinator\.metrics_address.*cannot be opened"):
            asyncio.run(coordinator.start())
        with pytest.raises(StorageError, match="not started"):
            _ = coordinator.engine
    # Its state is let go of: the next start, now that the port is free, takes it.
    with serving(Bench.of(3), tmp_path, prepare=at(address)):
        pass
