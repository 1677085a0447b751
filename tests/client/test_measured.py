"""What rounds measured, as a client keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedrec.cli.main import main
from fedrec.errors import StorageError
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.ids import RoundId
from fedrec.protection import CKKS, SegmentSpec, VectorSpec
from fedrec_client.measured import MEASURED_FILE, read_measured, record_measured, stated_metrics

SUMS = np.arange(len(METRIC_NAMES), dtype=np.int64)


def test_rounds_come_back_in_order_and_once(tmp_path: Path) -> None:
    assert dict(read_measured(tmp_path)) == {}
    for number, factor in ((3, 1), (2, 2), (3, 5)):
        record_measured(tmp_path, RoundId(number), factor * SUMS)
    found = read_measured(tmp_path)
    assert list(found) == [2, 3]
    assert np.array_equal(found[RoundId(3)], 5 * SUMS)
    assert (tmp_path / MEASURED_FILE).stat().st_mode & 0o777 == 0o600


def test_an_unfinished_line_is_left_out_and_a_damaged_one_told(tmp_path: Path) -> None:
    record_measured(tmp_path, RoundId(1), SUMS)
    path = tmp_path / MEASURED_FILE
    path.write_text(path.read_text() + '{"round": 2, "met')
    assert list(read_measured(tmp_path)) == [1]
    for damage in ("nonsense\n", '{"round": 2}\n', '{"round": 2, "metrics": [1]}\n'):
        path.write_text(damage)
        with pytest.raises(StorageError, match="damaged"):
            read_measured(tmp_path)


def test_statements_carry_metrics_of_exact_sums_only() -> None:
    segment = SegmentSpec(name="all", length=5, max_abs_sum=2**30, real=True)
    spec = VectorSpec(segments=(segment,), max_summands=4)
    assert stated_metrics(CKKS.plan(spec, preset="lean"), SUMS) == SUMS.astype("<i8").tobytes()
    assert stated_metrics(CKKS.plan(spec, preset="approximate"), SUMS) == b""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "fedrec.toml"
    settings.write_text('[client]\nstate = "state"\n')
    (tmp_path / "state").mkdir()
    sums = np.zeros(len(METRIC_NAMES), dtype=np.int64)
    names = ("model.validation.users", "model.validation.hits", "participants", "loss")
    for name, value in zip(names, (4, 1, 2, 3 << 15), strict=True):
        sums[METRIC_NAMES.index(name)] = value
    record_measured(tmp_path / "state", RoundId(2), sums)
    for options in ((), ("--json",)):
        with pytest.raises(SystemExit) as left:
            main(["client", "measured", str(settings), *options])
        assert not left.value.code
        shown = capsys.readouterr().out
        if options:
            assert json.loads(shown)["rounds"]["2"] == sums.tolist()
        else:
            assert shown == "round    2  HR 0.2500  NDCG 0.0000  loss 1.5000  2 users trained\n"
