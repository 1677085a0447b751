"""A light client as a process of its own: `python -m world.light_process`."""

from __future__ import annotations

import sys
from pathlib import Path

from world.light import LightClient, made_up

from fedrec.follower.patient_link import Backoff, Meter, StopSwitch, patient_link
from fedrec.identity.certificates import Credentials
from fedrec.identity.identity import Identity
from fedrec.ids import RoundId
from fedrec.plan.agreement import plan_from_json
from fedrec.protection import SegmentSpec, VectorSpec
from fedrec.wire.grpc_link import GrpcLink
from fedrec.wire.messages import NOTHING, Finished, Remembered, StepMessage, StepTask, Train

POLL_SECONDS = 20.0


def main(address: str, folder: str, number: int, spec: VectorSpec) -> str:
    """Take part until the run is over; return its reason."""
    identity = Identity.load(Path(folder))
    client_id = identity.client_id
    own = Credentials.load(Path(folder) / "own.pem", "the test")
    stop = StopSwitch()
    patience = Backoff(stop, maximum_attempts=20), lambda error: None
    with GrpcLink(address, own) as once:
        link = patient_link(once, Meter(), *patience)
        info = link.federation(client_id)
        assert plan_from_json(info.plan_json).protection.name == "masks"
        client = LightClient(
            identity, info, spec, lambda round_id: made_up(spec.length, number, round_id)
        )
        version, remembered = RoundId(0), NOTHING
        while True:
            found = link.next_task(
                client_id, info.run, version, wait_seconds=POLL_SECONDS, remembered=remembered
            )
            if found.latest is not None and found.latest.header is not None:
                last = found.latest.header
                remembered = Remembered(
                    acknowledged_round=last.round, acknowledged_digest=last.digest
                )
            version = found.published_round
            task = found.task
            if isinstance(task, Finished):
                return task.reason
            if isinstance(task, Train):
                link.submit_masks(client.advertise(task))
            elif isinstance(task, StepTask):
                made = client.step(
                    task, lambda round_id, step: link.masks(client_id, info.run, round_id, step)
                )
                if isinstance(made, StepMessage):
                    link.submit_masks(made)
                else:
                    link.submit_update(*made)


if __name__ == "__main__":
    address, folder, number, values, summands = sys.argv[1:]
    spec = VectorSpec(
        segments=(
            SegmentSpec(name="change", length=int(values), max_abs_sum=10**6),
            SegmentSpec(name="metrics", length=2, max_abs_sum=10**6, signed=False),
        ),
        max_summands=int(summands),
    )
    print(main(address, folder, int(number), spec))
    assert "torch" not in sys.modules
