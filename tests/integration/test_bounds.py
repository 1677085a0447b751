"""One client of four adds what no user can, over sockets: its round is given up, the run not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from integration.conftest import Found
from integration.support.authority import AuthorityProcess
from integration.support.bench import plan_of
from integration.support.checks import check_against_one_process
from integration.support.links import poll
from integration.support.parties import Federation

from fedrec.errors import SumOutOfBounds
from fedrec.follower.round_journal import AUDIT_FILE
from fedrec.training.learner import Contribution
from fedrec.wire.messages import RoundKind
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.opening.revealer import STATE_FOLDER
from fedrec_authority.opening.sum_opening import _UNFIT
from fedrec_client.round.local_model import LocalModel
from fedrec_client.state.private_store import PrivateStore
from fedrec_server.rounds.endings import OUT_OF_BOUNDS
from fedrec_server.uploads.round_sum import ItemHolders

SPOILER = 3


class Spoiler:
    """Adds what 51 users may to a value of its first training round; there are 40, ten of them its
    own.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spoilt = 0
        self.folder: Path | None = None
        honest = LocalModel.contribute

        def contribute(model: LocalModel, kind: RoundKind, participating: object) -> Contribution:
            made = honest(model, kind, participating)  # type: ignore[arg-type]
            if kind == "train" and model._store.folder == self.folder and not self.spoilt:
                self.spoilt += 1
                layout = model._learner.server.travelling.layout(kind, model.shared)
                tensor = layout.tensors[0]
                # More than 40 users, who are all there are, even if ten move it the other way.
                made.vector[0] = 51 * tensor.bound
            return made

        monkeypatch.setattr(LocalModel, "contribute", contribute)


@pytest.fixture
def spoiler(monkeypatch: pytest.MonkeyPatch) -> Spoiler:
    return Spoiler(monkeypatch)


def begun(found: Found, spoiler: Spoiler, **plan: str) -> Federation:
    federation = found(plan_of(n_clients=4, **plan), 4)  # type: ignore[arg-type]
    spoiler.folder = federation.bench.state(SPOILER)
    for number in range(4):
        federation.client(number)
    return federation


def abandoned(federation: Federation) -> list[tuple[int | None, str]]:
    events = [event for event in federation.journal() if event.kind == "round abandoned"]
    return [(event.round, str(event.fields["reason"])) for event in events]


@pytest.mark.parametrize("protection", ["none", "masks"])
@pytest.mark.parametrize("algorithm", ["fedmf", "ease"])
def test_the_coordinator_refuses_what_it_can_read(found, spoiler, protection, algorithm):
    """Clients, who would refuse it as well, never see it. The journal names no item."""
    federation = begun(found, spoiler, protection=protection, algorithm=algorithm)
    check_against_one_process(federation)
    assert abandoned(federation) == [(2, OUT_OF_BOUNDS)]
    assert spoiler.spoilt == 1


def test_the_authority_refuses_it(found, spoiler):
    federation = begun(found, spoiler, protection="bfv", key_holder="authority")
    bench = federation.bench
    authority = AuthorityProcess(bench, federation.address)
    log = AuthorityFolder(bench.workspace.folder / "keys").revealer.folder / STATE_FOLDER
    try:
        authority.wait_for("reveal refused")
        check_against_one_process(federation)
    finally:
        authority.close()
    (line,) = (log / AUDIT_FILE).read_text().splitlines()
    said = json.loads(line)
    assert (said["event"], said["code"], said["round"]) == (
        "reveal_refused",
        "sum_out_of_bounds",
        2,
    )
    ((number, reason),) = abandoned(federation)
    assert (number, reason) == (2, f"the key authority refused the sum: {_UNFIT}")


def test_members_refuse_it(found, spoiler):
    """Each decrypts it itself, applies nothing, reports nothing, and says why it stops."""
    federation = begun(found, spoiler, protection="bfv")
    bench = federation.bench
    for number, client in enumerate(federation.clients):
        assert isinstance(client.failure(), SumOutOfBounds)
        (line,) = (bench.state(number) / AUDIT_FILE).read_text().splitlines()
        said = json.loads(line)
        assert (said["event"], said["code"], said["round"]) == (
            "published_round_refused",
            "sum_out_of_bounds",
            2,
        )
        assert PrivateStore(bench.state(number), read_only=True).state.version == 1
    federation.clock.jump(bench.plan.rounds.report_seconds)
    (unclear,) = poll(
        lambda: [e for e in federation.journal() if (e.kind, e.round) == ("round measured", 2)]
    )
    assert unclear.fields["reason"] == "fewer than two clients reported"
    assert unclear.fields["metrics"] == []


def test_a_restarted_coordinator_knows_the_count(found, spoiler):
    """Pairs are held to holders that were published before the process began."""
    federation = begun(found, spoiler, protection="none", algorithm="ease")
    check_against_one_process(federation)
    engine = federation.coordinator.engine
    (first, *_), holders = federation.published(), ItemHolders(engine.run).known()
    assert holders is not None and first.kind == "count"
    counts = np.zeros(len(holders.last), dtype=np.int64)
    for users in federation.bench.users():
        counts += np.bincount(users.train_items, minlength=len(counts))
    assert np.array_equal(holders.last, counts) and holders.first is holders.last
