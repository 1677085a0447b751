"""The shipped compose file, whose parties are killed in the middle of a round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from containers.engine import ROOT, Engine, poll
from containers.federation import CLIENTS, PARTIES, Federation, federation
from containers.in_one_process import digests

from fedrec.recommender import MODEL_NAME, ModelFile

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

HELD = "client-3"
"""The client that a round waits for while others are killed."""
KILLED = ("coordinator", "authority", "client-1")
KIT = "/var/lib/fedrec"


@pytest.mark.parametrize("protection", ["bfv", "ckks"])
def test_kills_in_mid_round_change_no_bit(
    engine: Engine,
    images: Mapping[str, str],
    prometheus: str,
    settings: Mapping[str, Path],
    cache: Path,
    tmp_path: Path,
    protection: str,
) -> None:
    wanted = in_one_process(engine, images["client"], settings[protection], cache)
    with federation(
        engine, settings[protection], cache, tmp_path, PROMETHEUS_IMAGE=prometheus
    ) as parties:
        parties.up()
        held = parties.hold_a_round(HELD)
        assert_healthy(parties, images)
        assert_confined(parties)
        assert_watched(parties)
        joined = len(events_of(parties, "client-1", "joined"))
        parties.kill(KILLED)
        poll(lambda: len(events_of(parties, "client-1", "joined")) > joined, "client-1 is back")
        assert held not in parties.rounds("round published")
        parties.signal(HELD, "CONT")
        parties.wait_for_the_end()
        assert [parties.state(client)["ExitCode"] for client in CLIENTS] == [0, 0, 0]
        assert held in parties.rounds("round published")
        for client in CLIENTS:
            models = exported(parties, images["client"], client, tmp_path / client)
            assert [models[which].items() - wanted[which].items() for which in wanted] == [
                set()
            ] * 2
            assert_recommends(parties, images["client"], client)


def events_of(parties: Federation, service: str, event: str) -> list[dict[str, Any]]:
    """Return the events of one kind in a service's log."""
    return [found for found in parties.events(service) if found["event"] == event]


def in_one_process(engine: Engine, image: str, settings: Path, cache: Path) -> dict[str, Any]:
    """Return the digests of the best and the latest model without any federation.

    It compiles what trains anew: what the image brings has to give the same bits.
    """
    script = ROOT / "tests" / "containers" / "in_one_process.py"
    options = ["--entrypoint", "python", "--env", "FEDREC_CACHE=/cache"]
    options += ["--env", "NUMBA_CACHE_DIR=/tmp/anew"]
    for source, target in (
        (script, "/in_one_process.py"), (settings, "/federation.toml"), (cache, "/cache")
    ):  # fmt: skip
        options += ["--volume", f"{source}:{target}:ro"]
    text = engine.alone(image, "/in_one_process.py", "/federation.toml", options=options)
    return dict(json.loads(text))


def exported(parties: Federation, image: str, client: str, folder: Path) -> dict[str, Any]:
    """Return the digests of what a client's volume has of the models: all that recommending needs.

    The momentum of the federation's own optimiser stays in it.
    """
    folder.mkdir()
    folder.chmod(0o777)
    options = ("--volume", f"{parties.volume(client)}:{KIT}", "--volume", f"{folder}:/out")
    found = {}
    for which, flags in (("best", ()), ("latest", ("--latest",))):
        parties.engine.alone(
            image, "client", "export-model", "client.toml", "--to", f"/out/{which}", *flags,
            options=options,
        )  # fmt: skip
        found[which] = digests(ModelFile.load(folder / which / MODEL_NAME).shared)
        assert "item_embedding" in found[which]
    return found


def assert_recommends(parties: Federation, image: str, client: str) -> None:
    """Recommend to a client's first user out of its volume, without network."""
    options = ("--volume", f"{parties.volume(client)}:{KIT}:ro")
    head = parties.engine.alone(
        image, "-n2", f"{KIT}/interactions.csv", options=(*options, "--entrypoint", "head")
    )
    user = head.splitlines()[1].split(",")[0]
    text = parties.engine.alone(
        image, "recommend", "client.toml", "--user", user, "--json", options=options
    )
    found = json.loads(text)
    assert len({item["item_id"] for item in found["items"]}) == 10


def assert_healthy(parties: Federation, images: Mapping[str, str]) -> None:
    """Run every party's health check in its container, as the engine does from time to time."""
    for party in PARTIES:
        if party != HELD:
            image = images["client" if party in CLIENTS else party]
            # Fails with what the check said.
            parties.inside(party, *parties.engine.healthcheck(image))


def assert_confined(parties: Federation) -> None:
    """Look at what containers may do, and at which of them mounts what."""
    mounted: dict[str, set[str]] = {}
    running = parties.engine.run("ps", "--all", "--quiet", "--no-trunc").split()
    for container in running:
        for mount in parties.engine.inspect(container)["Mounts"]:
            if mount["Type"] == "volume":
                mounted.setdefault(mount["Name"], set()).add(container)
    setup = parties.container("setup")
    networks = {
        party: set(parties.engine.inspect(parties.container(party))["NetworkSettings"]["Networks"])
        for party in PARTIES
    }
    assert not any(networks["authority"] & networks[client] for client in CLIENTS)
    assert not parties.state("setup")["Running"]
    for party in PARTIES:
        own = parties.container(party)
        assert mounted[parties.volume(party)] == {own, setup}
        found = parties.engine.inspect(own)
        assert [mount["Destination"] for mount in found["Mounts"] if mount["Type"] != "tmpfs"] == [
            KIT
        ]
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert not found["HostConfig"]["Privileged"]
        if party != HELD:
            assert parties.inside(party, "id", "-u").strip() == "10001"
            status = parties.inside(party, "cat", "/proc/1/status")
            assert "CapEff:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status


def assert_watched(parties: Federation) -> None:
    """Every party but the frozen one answers Prometheus."""
    code = (
        "import urllib.request as u;"
        "print(u.urlopen('http://prometheus:9090/api/v1/query?query=up').read().decode())"
    )

    def up() -> set[str]:
        found = json.loads(parties.inside("coordinator", "python", "-c", code, check=False) or "{}")
        series = found.get("data", {}).get("result", ())
        return {one["metric"]["instance"] for one in series if one["value"][1] == "1"}

    wanted = {"coordinator:9464", "authority:9465", "client-1:9466", "client-2:9466"}
    poll(lambda: up() >= wanted, f"Prometheus reads {', '.join(sorted(wanted))}")
