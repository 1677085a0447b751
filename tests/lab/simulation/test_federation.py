"""The in-process federation: the same bits for every party, stopped or not."""

import fcntl
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lab.simulation.runs import bits, run
from world.clock import FakeClock
from world.plans import params

from fedrec import state_folder
from fedrec.algorithms.algorithm import Derived
from fedrec.errors import (
    DataError,
    FolderInUse,
    RefusedError,
    SettingsError,
    StorageError,
    TrainingError,
)
from fedrec.model.tables import TableRoom
from fedrec.settings.schema import Settings
from fedrec.training.starting import check_data
from fedrec_lab.simulation import against_popularity, round_kind, simulate, user_ranks
from fedrec_lab.simulation.checkpoint import CheckpointFolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(settings_of, data):
    return run(settings_of(), data)


PROTECTIONS = {
    "none": {"name": "none"},
    "bfv": {"name": "bfv"},
    "ckks": {"name": "ckks", "preset": "lean"},
    "paillier": {"name": "paillier", "preset": "packed-2048"},
    "masks": {"name": "masks"},
    "bfv by its members": {"name": "bfv", "key_holder": "members"},
}
# That every protection adds up exactly is in test_every_combination.py.
CORE = [("none", 1), ("none", 7), ("bfv", 3), ("masks", 7)]
WHOLE = [(name, n_clients) for name in PROTECTIONS for n_clients in (3, 7)]


@pytest.mark.parametrize(
    "how",
    params(*CORE, long=[each for each in WHOLE if each not in CORE]),
    ids=lambda how: "-".join(map(str, how)),
)
def test_the_same_bits_for_every_number_of_clients_and_protection(settings_of, data, alone, how):
    protection, n_clients = how
    settings = settings_of(protection=PROTECTIONS[protection])
    result = run(settings, data, n_clients=n_clients, protect=True)
    assert bits(result) == bits(alone)
    for name in ("popularity", "untrained", "know_nothing"):
        assert result.evaluation.rates(name, "test") == alone.evaluation.rates(name, "test")
    assert (result.evaluation.rates("local", "test") is None) == (n_clients == 1)


def test_cells_that_leave_nothing_name_their_setting(settings_of, data):
    settings = settings_of(
        protection={"name": "bfv", "key_holder": "authority"}, federation={"minimum_item_users": 10}
    )
    with pytest.raises(SettingsError, match=r"federation\.corrupt_cells"):
        run(settings, data, n_clients=6, cells=((0, 1, 2), (3, 4, 5)))


@pytest.mark.parametrize(
    "update",
    [
        {"structure": "scolr"},
        {"structure": "scolr", "normaliser": "entry"},
        {"structure": "svd"},
        {"structure": "topk"},
    ],
    ids=["scolr", "scolr-entry", "svd", "topk"],
)
def test_the_same_bits_for_every_update_structure(settings_of, data, update):
    few = {"total": 2, "recompute_limit": 16}
    alone = run(settings_of(update=update, rounds=few), data)
    protected = settings_of(update=update, rounds=few, protection={"name": "bfv"})
    assert bits(run(protected, data, n_clients=3, protect=True)) == bits(alone)
    by_client = update | {"subset": "client", "compress": "client"}
    other = run(settings_of(update=by_client, rounds=few), data, n_clients=3)
    assert bits(other) != bits(alone)


def test_more_clients_than_users(settings_of, data):
    users, catalogue = data
    few = users.select(np.arange(5)), catalogue
    settings = settings_of(federation={"minimum_item_users": 1}, rounds={"total": 2})
    assert bits(run(settings, few, n_clients=9)) == bits(run(settings, few))


def test_rounds_follow_the_coordinators_order(settings_of, alone):
    kinds = [report.kind for report in alone.rounds]
    assert kinds == ["count", *["train"] * 6, "evaluate"]
    assert [report.round for report in alone.rounds] == list(range(1, 9))
    assert [round_kind(settings_of(), number) for number in range(1, 9)] == kinds
    assert alone.finished
    assert alone.last.round == 8
    assert alone.rounds[0].participants == alone.rounds[-1].participants == 0
    assert alone.rounds[1].participants == 60
    assert alone.rounds[0].validation is None
    assert alone.rounds[-1].test.users == 60


def test_it_learns_what_was_planted(settings_of, data):
    settings = settings_of(rounds={"total": 40}, evaluation={"every_rounds": 5})
    result = run(settings, data)
    # A user has 10 of the cluster's 30 items for training: a perfect model ranks among 20.
    assert result.best_report.test.hr > 0.3
    assert result.evaluation.rates("popularity", "test").hr < 0.25
    assert (
        against_popularity(user_ranks(result), at=result.settings.evaluation.at).difference.low > 0
    )
    labels = [row.label for row in result.rows()]
    assert labels[0].startswith("fedmf (colr), round")
    assert len(labels) == 4


def test_the_best_version_is_the_earliest_of_the_best_on_validation(alone):
    measured = {
        report.round - 1: report.validation.ndcg for report in alone.rounds if report.validation
    }
    best = max(measured.values())
    assert alone.best.round == min(number for number, ndcg in measured.items() if ndcg == best)
    assert alone.best.validation_ndcg == best
    assert alone.best_report.round == alone.best.round + 1
    assert set(measured) == set(range(1, 8))


@pytest.mark.parametrize("stop_after", [1, 5])
def test_stopped_and_resumed_equals_undisturbed(settings_of, data, alone, tmp_path, stop_after):
    settings = settings_of()
    seen = []
    first = run(
        settings,
        data,
        folder=tmp_path,
        on_round=seen.append,
        stop=lambda: len(seen) == stop_after,
    )
    assert not first.finished
    assert first.evaluation is None
    assert len(first.rounds) == stop_after
    second = run(settings, data, folder=tmp_path, resume=True, on_round=seen.append, n_clients=3)
    assert second.finished
    assert bits(second) == bits(alone)
    assert [report.round for report in seen] == list(range(1, 9))


@pytest.mark.parametrize("algorithm", ["fedmf", "pfedrec"])
def test_tables_in_files_give_the_same_bits_stopped_and_regrouped(
    settings_of, data, tmp_path, monkeypatch, algorithm
):
    changes = {"rounds": {"total": 4, "recompute_limit": 16, "user_fraction": 0.7}}
    if algorithm == "pfedrec":
        own = {"name": algorithm, "dim": 8, "learning_rate": 0.1, "item_rate_scale": 1.0}
        changes |= {"algorithm": own, "update": {"structure": "dense", "clip": 64.0}}
    settings = settings_of(**changes)
    held = run(settings, data)
    # The least that the settings allow is more than these tables take.
    monkeypatch.setattr(TableRoom, "is_enough_for", lambda self, n_users, widths: False)
    seen = []
    stopped = run(
        settings, data, folder=tmp_path, on_round=seen.append, stop=lambda: len(seen) == 3
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint", "blocks"}
    resumed = run(settings, data, folder=tmp_path, resume=True, n_clients=3)
    for result in (stopped, resumed):
        for version in (result.last, result.best):
            assert version.private.in_files
    assert bits(resumed) == bits(held)


def test_a_killed_simulation_goes_on_from_its_last_checkpoint(settings_of, data, alone, tmp_path):
    clock = FakeClock()
    seen = []

    def die_in_round_7(report):
        clock.advance(13.0)
        seen.append(report.round)
        if report.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings_of(), data, folder=tmp_path, on_round=die_in_round_7, clock=clock)
    resumed = run(
        settings_of(), data, folder=tmp_path, resume=True, on_round=lambda r: seen.append(r.round)
    )
    assert bits(resumed) == bits(alone)
    # Rounds take 13 seconds, so that every third one is followed by a checkpoint.
    assert seen == [1, 2, 3, 4, 5, 6, 7, 7, 8]


def test_a_checkpoint_keeps_private_vectors_to_its_owner(settings_of, data, tmp_path):
    run(settings_of(), data, folder=tmp_path, stop=lambda: True)
    folder = tmp_path / "checkpoint"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    run(settings_of(), data, folder=tmp_path, resume=True, stop=lambda: True)
    # The first version's files are gone, but for what both versions share.
    assert len(list(folder.glob("*.safetensors"))) <= 4
    CheckpointFolder(tmp_path).remove()
    assert not folder.exists()


def test_one_process_trains_in_a_run_folder(settings_of, data, tmp_path):
    run(settings_of(), data, folder=tmp_path, stop=lambda: True)
    refused = []

    def again(report):
        # Whether it goes on with the run or begins it anew.
        for resume in (True, False):
            with pytest.raises(FolderInUse, match=f"'{tmp_path}' is in use by process") as news:
                run(settings_of(), data, folder=tmp_path, resume=resume)
            refused.append(news.value.code)

    run(settings_of(), data, folder=tmp_path, resume=True, on_round=again, stop=lambda: True)
    assert refused == ["folder_in_use"] * 2
    run(settings_of(), data, folder=tmp_path, resume=True, stop=lambda: True)


def test_a_look_at_the_lock_refuses_no_start(tmp_path, monkeypatch):
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.path.mkdir()
    look = (checkpoints.path / "lock").open("w")
    fcntl.flock(look, fcntl.LOCK_SH)
    time = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: look.close())
    monkeypatch.setattr(state_folder, "time", time)
    checkpoints.open()
    checkpoints.close()
    assert look.closed


def test_resuming_something_else_is_refused(settings_of, data, tmp_path):
    with pytest.raises(StorageError, match="no checkpoint"):
        run(settings_of(), data, folder=tmp_path, resume=True)
    assert not list(tmp_path.iterdir())
    run(settings_of(), data, folder=tmp_path, stop=lambda: True)
    other = settings_of(algorithm={"dim": 9})
    for accepted in (False, True):
        with pytest.raises(SettingsError, match="other settings"):
            run(other, data, folder=tmp_path, resume=True, accept_other_arithmetic=accepted)
    stored = next((tmp_path / "checkpoint").glob("shared-*"))
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match="cannot be read"):
        run(settings_of(), data, folder=tmp_path, resume=True)
    with pytest.raises(SettingsError, match="folder"):
        run(settings_of(), data, resume=True)


def test_indices_in_the_clear_change_no_bit_and_take_a_client_for_each_user(settings_of, data):
    users, catalogue = data
    few = users.select(np.arange(6)), catalogue
    common = {"rounds": {"total": 2}, "federation": {"minimum_item_users": 1, "maximum_users": 64}}
    topk = {"structure": "topk", "ratio": 0.02, "rank": 4}
    hidden = settings_of(update=topk, **common)
    paillier = {"name": "paillier", "preset": "single-2048"}
    clear = settings_of(update={**topk, "indices": "clear"}, protection=paillier, **common)
    found = run(clear, few, n_clients=6, protect=True)
    assert bits(found) == bits(run(hidden, few))
    # k = ceil(.02 x 120 x 8) = 20; beside it counts and metrics share ciphertexts.
    assert 20 * 516 < found.rounds[1].vector_bytes < 20 * 516 + 5 * 512
    with pytest.raises(RefusedError, match="This client has 2 users"):
        run(clear, few, n_clients=3, protect=True)


def test_a_fraction_of_the_users_is_the_same_users_for_every_grouping(settings_of, data):
    settings = settings_of(rounds={"total": 4, "user_fraction": 0.4})
    whole, parts = run(settings, data), run(settings, data, n_clients=5)
    assert bits(whole) == bits(parts)
    taking_part = [report.participants for report in whole.rounds if report.kind == "train"]
    assert len(set(taking_part)) > 1
    assert all(10 < number < 40 for number in taking_part)


def test_numbers_that_cannot_work_are_refused(settings_of, data):
    with pytest.raises(SettingsError, match="maximum_users"):
        run(settings_of(federation={"maximum_users": 59}), data)
    bfv = settings_of(protection={"name": "bfv"})
    with pytest.raises(SettingsError, match="2 clients cannot be summed"):
        run(bfv, data, n_clients=2, protect=True)
    with pytest.raises(SettingsError, match="17 clients cannot be summed"):
        run(bfv, data, n_clients=17, protect=True)
    with pytest.raises(SettingsError, match=r"data\.path"):
        simulate(bfv)


def test_the_data_file_of_the_settings_is_read(settings_of, tmp_path):
    path = tmp_path / "u.data"
    rows = [(user, item, user + item) for user in range(1, 9) for item in range(1, 7)]
    path.write_text("".join(f"{user}\t{item}\t5\t{time}\n" for user, item, time in rows))
    settings = settings_of(data={"path": str(path)}, rounds={"total": 1})
    result = simulate(settings)
    assert (len(result.users), len(result.catalogue)) == (8, 6)


def test_ml_100k_has_the_same_bits_in_seven_clients(ml_100k, ml_100k_users):
    data = ml_100k_users, ml_100k.catalogue
    settings = Settings.model_validate({"rounds": {"total": 2}, "client": {"device": "cpu"}})
    whole = run(settings, data)
    parts = run(settings, data, n_clients=7, protect=True)
    assert bits(parts) == bits(whole)
    assert whole.rounds[1].participants == 943
    assert whole.evaluation.rates("popularity", "test").hr == pytest.approx(0.0764, abs=0.0005)


def test_a_run_that_diverges_keeps_the_version_before(settings_of, data, tmp_path, monkeypatch):
    settings, start = settings_of(), Derived.start

    def diverge(self, shared, active, round_id, device, dtype=None):
        begun = start(self, shared, active, round_id, device, dtype)
        if round_id == 4:
            begun.shared["item_embedding"].mul_(torch.inf)
        return begun

    monkeypatch.setattr(Derived, "start", diverge)
    with pytest.raises(TrainingError, match=r"round 3 with 60 users.*algorithm\.learning_rate"):
        run(settings, data, folder=tmp_path)
    monkeypatch.setattr(Derived, "start", start)
    expected = run(settings, data, stop=count_to(3))
    kept = run(settings, data, folder=tmp_path, resume=True, stop=lambda: True)
    assert len(kept.rounds) == 4
    assert [report.loss for report in kept.rounds[:3]] == [r.loss for r in expected.rounds]
    assert bits(kept) == bits(run(settings, data, stop=count_to(4)))


def count_to(n_rounds):
    asked = []
    return lambda: asked.append(None) or len(asked) == n_rounds


def test_too_little_data_is_refused_with_every_reason(settings_of, data):
    users, catalogue = data
    short = replace(users, test_items=np.full(60, -1), validation_items=np.full(60, -1))
    settings = settings_of(
        federation={"minimum_item_users": 61}, evaluation={"protocol": "sampled"}
    )
    with pytest.raises(DataError, match="held by 61 users"):
        run(settings, (short, catalogue))
    few = replace(short, train_items=short.train_items % 30)
    with pytest.raises(DataError) as caught:
        check_data(settings.plan, few, 30)
    for reason in (
        r"held by 61 users .federation\.minimum_item_users., and the most common one by \d+",
        "no user has 3 interactions",
        "the catalogue has 30 items, but evaluation.protocol = .sampled. ranks an item among 99",
    ):
        assert re.search(reason, caught.value.message)
    assert 'evaluation.protocol = "full"' in caught.value.remedy
