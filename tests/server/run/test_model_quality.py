"""What operators are told of the model's quality, and whom the round in progress waits for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from server.support.driving import current, gather, running, upload
from server.support.federations import Bench, identity

from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec.plan.schema import EvaluationSettings
from fedrec.wire.admin_link import RunStatus
from fedrec.wire.chunks import Blob
from fedrec.wire.fields import StatedRows
from fedrec_server.rounds.changes import RoundPublished
from fedrec_server.run.figures import LatestQuality
from fedrec_server.service.admin_service import AdminService
from fedrec_server.store.store import Entry


def sums(**values: int) -> list[int]:
    return [values.get(name.replace(".", "_"), 0) for name in METRIC_NAMES]


# 12 users trained with a mean loss of one quarter; 8 of 40 were hit.
TRAINED = sums(
    participants=12, loss=12 << 13,
    model_validation_users=40, model_validation_hits=8, model_validation_gain=4 << 20,
)  # fmt: skip
LOSS_ONLY = sums(participants=12, loss=12 << 13)
EVALUATED = sums(
    model_test_users=40, model_test_hits=10, model_test_gain=5 << 20,
    untrained_test_users=1000, untrained_test_hits=600,
)  # fmt: skip


class Journal:
    """Stands for a store that has entries and nothing else."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def last_entry(self) -> int:
        return len(self._entries)

    def entries(self, after: int, limit: int) -> list[Entry]:
        return self._entries[after : after + limit]


def published(number: int, values: list[int]) -> RoundPublished:
    return RoundPublished(
        round=RoundId(number), kind="train", blob=Blob.of(b""), counted=3, bytes_received=0,
        seconds=1.0, at=0.0, metrics=np.array(values, dtype="<i8").tobytes(),
        rows=StatedRows.whole(1),
    )  # fmt: skip


def test_each_figure_is_that_of_the_last_round_that_measured_it():
    found = LatestQuality()
    assert found.quality.round == 0
    found.on_commit(None, [published(1, sums())])
    assert found.quality.round == 0, "a count measures nothing"
    found.on_commit(None, [published(2, TRAINED), published(3, EVALUATED)])
    quality = found.quality
    assert quality.round == 3
    assert quality.loss == pytest.approx(0.25)
    assert quality.validation is not None and quality.test is not None
    assert (quality.validation.hr, quality.validation.ndcg) == (0.2, 0.1)
    assert (quality.test.hr, quality.test.ndcg) == (0.25, 0.125)
    assert quality.untrained is not None and quality.untrained.hr == 0.6


def test_the_round_is_the_one_that_ranked_even_where_nothing_changed():
    found = LatestQuality()
    found.on_commit(None, [published(2, TRAINED)])
    first = found.quality
    found.on_commit(None, [published(3, TRAINED)])
    assert (first.round, found.quality) == (2, replace(first, round=RoundId(3)))


def test_a_loss_alone_dates_no_rates():
    found = LatestQuality()
    found.on_commit(None, [published(2, LOSS_ONLY)])
    assert found.quality.round == 2, "nothing was ranked yet"
    found.on_commit(None, [published(3, TRAINED), published(4, LOSS_ONLY)])
    assert found.quality.round == 3


@pytest.mark.parametrize("between", [0, 499, 2000])
def test_after_a_restart_the_journal_says_the_same(between):
    def entry(number: int, text: str) -> Entry:
        return Entry(
            unix_seconds=0.0, kind="round published", round=RoundId(number), fields_json=text
        )

    entries = [
        entry(2, f'{{"metrics": {TRAINED}}}'),
        *[entry(3, "{}")] * between,
        entry(3, f'{{"metrics": {EVALUATED}}}'),
    ]
    read, noted = LatestQuality(), LatestQuality()
    read.read(Journal(entries))  # type: ignore[arg-type]
    noted.on_commit(None, [published(2, TRAINED), published(3, EVALUATED)])
    assert read.quality == noted.quality


@pytest.mark.parametrize(
    ("protocol", "before", "after"),
    [("full", "", ""), ("sampled", None, "The untrained model gets HR@10 0.60, not 0.10")],
)
def test_rates_have_their_protocol_and_what_the_last_round_says_of_it(
    tmp_path, protocol, before, after
):
    bench = Bench.of(3)
    evaluation = EvaluationSettings(protocol=protocol)
    plan = bench.federation.plan.model_copy(update={"evaluation": evaluation})
    bench = replace(bench, federation=replace(bench.federation, plan=plan))

    async def scenario() -> list[RunStatus]:
        async with running(bench, tmp_path) as engine:
            service = AdminService(engine)
            first = RunStatus.of(await service.GetStatus(None, None))
            engine.quality.on_commit(
                engine.run.state, (published(2, TRAINED), published(3, EVALUATED))
            )
            return [first, RunStatus.of(await service.GetStatus(None, None))]

    first, last = asyncio.run(scenario())
    assert first.protocol == last.protocol == protocol
    assert first.caution == before
    assert last.caution is not None and last.caution.startswith(after)
    assert bool(last.caution) == bool(after)


def test_a_round_in_progress_waits_for_those_who_did_not_send(tmp_path):
    bench = Bench.of(3)
    labels = [identity(number).public.label for number in range(3)]

    async def scenario() -> list[tuple[str, ...]]:
        told = []
        async with running(bench, tmp_path) as engine:
            service = AdminService(engine)

            async def awaited() -> tuple[str, ...]:
                return RunStatus.of(await service.GetStatus(None, None)).awaited

            engine.run.presence.heard(identity(0).client_id)
            told.append(await awaited())
            await gather(engine, range(3))
            assert current(engine.run.state).phase == "collecting"
            told.append(await awaited())
            await upload(engine, bench, 1)
            told.append(await awaited())
        return told

    before, begun, after_one = asyncio.run(scenario())
    assert set(before) <= set(labels) - {labels[0]}
    assert begun == tuple(labels)
    assert after_one == (labels[0], labels[2])
