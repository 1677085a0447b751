"""Fifty clients as processes of their own, over real sockets; none of them imports torch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from server.support.federations import Bench, credentials, identity
from server.support.light import made_up
from server.support.masked import federation_of
from server.support.serving import serving

from fedrec.identity.document import write_secret
from fedrec.ids import RoundId
from fedrec.protection import NoProtection
from fedrec.protection.masks import parameters_for

CLIENTS = 50
VALUES = 100
SECONDS = 280


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
def test_fifty_processes(tmp_path):
    federation = federation_of(
        CLIENTS, values=VALUES, minimum_clients=CLIENTS, deadline_seconds=600,
        mask_step_seconds=200.0,
    )  # fmt: skip
    graph = parameters_for(CLIENTS, federation.plan.protection.tolerance)
    assert (graph.degree, graph.threshold, graph.quorum) == (16, 11, 28)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with serving(Bench(federation=federation), tmp_path) as served:
        children = []
        for number in range(CLIENTS):
            folder = tmp_path / f"client-{number}"
            folder.mkdir(mode=0o700)
            identity(number).save(folder)
            write_secret(folder / "own.pem", credentials(number).to_pem())
            command = [
                sys.executable, "-m", "server.support.light_process", served.address,
                str(folder), str(number), str(VALUES), str(federation.vectors.largest.max_summands),
            ]  # fmt: skip
            children.append(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        try:
            for child in children:
                said, complained = child.communicate(timeout=SECONDS)
                assert child.returncode == 0, complained.decode()
                assert said.decode().strip() == "all rounds are published"
        finally:
            for child in children:
                child.kill()
                child.communicate()
        store = served.coordinator.engine.run.store
        spec = federation.vectors.largest
        codec = NoProtection(spec, NoProtection.plan(spec))
        context, _ = codec.generate()
        for round_id in (1, 2, 3):
            record = store.published(RoundId(round_id))
            assert record is not None and len(record.contributions) == CLIENTS
            found = codec.member(context).reveal(
                store.spool.read(record.name, record.blob), CLIENTS
            )
            wanted = sum(made_up(spec.length, number, round_id) for number in range(CLIENTS))
            assert np.array_equal(found, wanted)
