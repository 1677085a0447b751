"""What the key was used for, in the revealer's state folder: kept, checked and read as before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from client.state.test_lost_database import check_earlier_releases, check_every_cell
from client.state.test_private_store import PIN

from fedrec.errors import RefusedError
from fedrec.ids import RoundId
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import _CatchingUp
from fedrec_client.state.client_state import ClientState


@pytest.fixture
def sums(tmp_path: Path) -> OpenedSums:
    made = OpenedSums(tmp_path / "state", setting="--into")
    made.bind(PIN, 1)
    made.record_reveal(RoundId(1), b"\xfc" * 32, b"sum", tagged=True)
    made.record_reveal(RoundId(2), b"b", b"sum")
    assert made.record_cell(RoundId(2), 3, b"sum of a cell")
    made.record_paused(RoundId(2), (3,), b"kept", newest=1)
    return made


def test_what_was_opened_is_read_until_its_round_is_published(sums):
    sums.close()
    with OpenedSums(sums.folder) as again:
        assert again.state == sums.state and again.state.refused_sums == 1
        found = again.state.revealed_as(RoundId(1))
        assert found is not None and found.manifest_digest == b"\xfc" * 32
        assert again.state.revealed_as(RoundId(3)) is None
        again.publish(RoundId(1), b"shared", metrics=b"\xff\x00")
        assert again.state.revealed_as(RoundId(1)) is None
        found = again.state.revealed_as(RoundId(2))
        assert found is not None and (found.manifest_digest, found.kept) == (b"b", b"kept")


def test_a_new_epoch_forgives_sums_and_a_new_run_does_not(sums):
    other = PIN.model_copy(update={"run": "run-2"})
    with sums:
        sums.bind(other, 1, new_run=True)
        state = sums.state
        assert (state.refused_sums, state.revealed, state.left_runs) == (1, (), ("run-1",))
        assert [(one.cell, one.round) for one in state.paused] == [(3, 0)]
        sums.bind(other, 2)
        assert (sums.state.refused_sums, sums.state.paused) == (0, ())


def test_another_value_in_any_column_of_any_table_is_noticed(sums):
    sums.keep_own("roster", b"{}")
    check_every_cell(sums)


def test_a_folder_of_earlier_releases_is_opened(sums):
    check_earlier_releases(sums, ClientState(pin=PIN, epoch=1))


@pytest.mark.parametrize(("number", "opened"), [(1, b"\xfc" * 32), (2, b"kept"), (3, b"any")])
def test_a_round_is_believed_with_the_contributions_that_were_opened(sums, number, opened):
    context = SimpleNamespace(membership=None, link=None, model=None, store=sums, journal=None)
    catching_up: Any = _CatchingUp(cast(Any, context))
    found = SimpleNamespace(round=number)
    catching_up._check_known(found, opened)
    if number < 3:
        # Of a round without its paused cells the others alone are published.
        with pytest.raises(RefusedError, match="were opened here"):
            catching_up._check_known(found, b"b")
