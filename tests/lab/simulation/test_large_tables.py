"""Private tables larger than memory: what a run writes and keeps, and what a kill leaves."""

import gc
import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab.simulation.runs import bits

from fedrec.errors import StorageError
from fedrec.model.block_folder import BlockFolder
from fedrec.model.blocked_table import BlockedTable
from fedrec.model.tables import names_in, read_manifest
from fedrec_lab.simulation.checkpoint import CheckpointFolder
from fedrec_lab.simulation.federation import SimulatedFederation

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("large_tables.py")


@pytest.fixture(scope="module")
def large():
    spec = importlib.util.spec_from_file_location("large_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def in_files(large):
    with large.small_blocks():
        yield large


@pytest.fixture(scope="module")
def held(large):
    """The run with its tables in memory."""
    return bits(large.run(None))


def blocks_in(folder):
    return {path.name for path in (folder / "blocks").glob("*.bin")}


def committed(folder):
    """Return the blocks that the checkpoint in a run folder names."""
    found = set()
    for path in (folder / "checkpoint").glob("private-*"):
        found |= names_in(read_manifest(path))
    return found


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("rows written", 40),
        pytest.param("checkpoint", 11, marks=pytest.mark.long),
        pytest.param("block named", 75, marks=pytest.mark.long),
        pytest.param("sweep", 4, marks=pytest.mark.long),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits_and_leaves_nothing(
    in_files, held, tmp_path, where, number
):
    command = [sys.executable, str(SCRIPT), str(tmp_path), where, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Whatever the moment: all that the checkpoint names is there.
    before = committed(tmp_path)
    assert before
    assert before <= blocks_in(tmp_path)
    resumed = in_files.run(tmp_path, resume=True)
    assert bits(resumed) == held
    assert all(version.private.in_files for version in (resumed.last, resumed.best))
    CheckpointFolder(tmp_path).remove()
    # The result is still there, and with it its files.
    assert bits(resumed) == held
    del resumed
    gc.collect()
    assert not (tmp_path / "blocks").exists()


@pytest.mark.parametrize("lost", ["checkpoint.json", "private-*"])
def test_a_checkpoint_that_lost_a_file_keeps_the_others(in_files, tmp_path, lost):
    """Brought back, the run goes on: neither tables nor models were deleted meanwhile."""
    in_files.run(tmp_path, stop=lambda: True)
    gc.collect()
    (path,) = list((tmp_path / "checkpoint").glob(lost))[:1]
    raw = path.read_bytes()
    path.unlink()
    before = {path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    assert any(path.parent.name == "blocks" for path in before)
    with pytest.raises(StorageError, match=path.name):
        in_files.run(tmp_path, resume=True)
    gc.collect()
    assert {
        path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"
    } == before
    path.write_bytes(raw)
    assert in_files.run(tmp_path, resume=True).rounds


def test_what_a_round_writes_and_a_run_keeps(in_files, tmp_path, monkeypatch):
    """At most 1.2 times the table written a round, and 3.2 times on disk, at any moment."""
    written, rounds, most = [0], [], [0]
    take_in, advance = BlockFolder.take_in, SimulatedFederation.advance

    def noting(self, file, n_bytes):
        # Sparse files count as what they will be.
        making = list(file.parent.glob(".*.new"))
        kept = sum(path.stat().st_size for path in file.parent.glob("*.bin"))
        most[0] = max(most[0], kept + n_bytes * len(making))
        written[0] += n_bytes
        return take_in(self, file, n_bytes)

    def advancing(self):
        before = written[0]
        report = advance(self)
        rounds.append((report.kind, written[0] - before))
        return report

    monkeypatch.setattr(BlockFolder, "take_in", noting)
    monkeypatch.setattr(SimulatedFederation, "advance", advancing)
    result = in_files.run(tmp_path, total=12)
    table = in_files.TABLE_BYTES
    trained = [size for kind, size in rounds if kind == "train"]
    assert len(trained) == 12
    assert min(trained) > 0
    assert max(trained) <= 1.2 * table
    assert most[0] <= 3.2 * table
    # After the last commit there are the last version and the best one, and nothing else.
    names = {
        name
        for version in (result.last, result.best)
        for own in version.private.tensors.values()
        for name in own.names
    }
    assert committed(tmp_path) <= names
    assert blocks_in(tmp_path) == names | committed(tmp_path)


def test_few_participants_write_few_blocks(in_files, tmp_path, monkeypatch):
    sizes = []
    take_in = BlockFolder.take_in
    monkeypatch.setattr(
        BlockFolder,
        "take_in",
        lambda self, file, n_bytes: sizes.append(n_bytes) or take_in(self, file, n_bytes),
    )
    in_files.run(tmp_path, total=1, user_fraction=0.03, user_sampling="count")
    # All users' first rows, twice: for the run and for the untrained reference; and those of one
    # participant's block of each of three tables in between.
    table = in_files.TABLE_BYTES
    row = table // in_files.N_USERS
    assert 0 < sum(sizes) % table <= row * in_files.N_USERS


def test_measuring_reads_the_tables_that_scoring_needs(in_files, tmp_path, monkeypatch):
    read = []
    rows = BlockedTable.rows

    def noting(self, wanted):
        read.append((self.shape, len(wanted)))
        return rows(self, wanted)

    result = in_files.run(tmp_path, total=2)
    monkeypatch.setattr(BlockedTable, "rows", noting)
    result.recommender().recommend(result.users.user_ids[3], 5)
    # One user's row of each table that FedRAP scores with.
    assert read == [
        ((in_files.N_USERS, in_files.N_ITEMS, in_files.DIM), 1),
        ((in_files.N_USERS, in_files.DIM), 1),
        ((in_files.N_USERS,), 1),
    ]


def test_a_disk_without_room_is_named_before_anything_is_made(large, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedrec.model.block_folder.shutil.disk_usage",
        lambda place: type("Usage", (), {"free": 3 * large.TABLE_BYTES})(),
    )
    monkeypatch.setattr(large, "N_USERS", 600)
    settings = large.settings

    def scarce(**rounds):
        made = settings(**rounds)
        federation = made.federation.model_copy(update={"maximum_users": 1024})
        client = made.client.model_copy(update={"memory_mib": 0})
        return made.model_copy(update={"federation": federation, "client": client})

    monkeypatch.setattr(large, "settings", scarce)
    with pytest.raises(
        StorageError, match=r"600 users take 0 MiB, more than client\.memory_mib = 0"
    ) as caught:
        large.run(tmp_path)
    assert "output.runs for a simulation" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
