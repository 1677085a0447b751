"""What is left of a demonstration's recorded traffic."""

import pytest
from world.federation import made_data, prepare
from world.plans import plan_of

from fedrec_lab.demo.demonstration import finish_recording, recording_of


@pytest.fixture
def workspace(tmp_path):
    """A federation whose coordinator recorded two files of 1 MiB each."""
    plan = plan_of(algorithm={"dim": 4}, protection={"name": "none"})
    found = prepare(tmp_path, plan, made_data(), n_clients=3)
    recording_of(found).mkdir()
    for name in ("a", "b"):
        (recording_of(found) / f"wire-{name}.frames").write_bytes(bytes(1 << 20))
    return found


@pytest.mark.parametrize("keep", [False, True])
def test_the_recording_stays_only_where_it_is_wanted(workspace, keep):
    before = set(workspace.folder.rglob("*"))
    seen = "\n".join(finish_recording(workspace, keep=keep))
    gone = before - set(workspace.folder.rglob("*"))
    folder = recording_of(workspace)
    assert gone == (set() if keep else {folder, *(folder / f"wire-{n}.frames" for n in "ab")})
    assert "wire-audit.json" in seen
    assert ("2.0 MiB, was deleted" in seen) is not keep
    assert (f"--recording {folder}" in seen) is keep
