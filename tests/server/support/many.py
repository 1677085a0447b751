"""A round under masks of many clients in one process, with clients that drop out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from server.support.masked import federation_of, masked

from fedrec.identity.roster import Roster
from fedrec.protection.masks import KeyList, MaskTerms

STEP_SECONDS = 3600.0


@contextmanager
def key_lists_checked_once() -> Iterator[None]:
    """Have one client check a list of keys for all: else each checks every signature anew.

    On machines of their own they do so side by side, a tenth of a millisecond for each signature.
    """
    checked: set[bytes] = set()
    verify = KeyList.verify

    def once(key_list: KeyList, terms: MaskTerms, roster: Roster) -> None:
        digest = key_list.digest(terms)
        if digest not in checked:
            verify(key_list, terms, roster)
            checked.add(digest)

    with patch.object(KeyList, "verify", once):
        yield
    assert len(checked) == 1


async def play_round(
    folder: Path,
    n_clients: int,
    *,
    values: int = 6,
    coordinator: str = "semi-honest",
    before: Collection[int] = (),
    after: Collection[int] = (),
    told: Callable[[str, float], None] = lambda phase, seconds: None,
) -> int:
    """Play one round and check its sum; return how many clients are in it.

    Args:
        coordinator: "malicious" makes each client check the signatures of more than half of all.
        before: drop out after their shares, before their vectors; their cells are not counted.
        after: drop out after their vectors.
        told: hears how long each step took.
    """
    federation = federation_of(
        n_clients,
        values=values,
        bound=10**9,
        coordinator=coordinator,
        deadline_seconds=STEP_SECONDS,
        mask_step_seconds=STEP_SECONDS,
    )
    with key_lists_checked_once():
        async with masked(folder, n_clients, federation=federation) as world:
            engine = world.engine
            gone: set[int] = set()
            while engine.run.state.published == 0:
                phase = world.round.phase
                gone |= set(before) if phase == "masking" else set()
                gone |= set(after) if phase == "signing" else set()
                begin = time.perf_counter()
                await world.all_act(without=gone, together=True)
                if engine.run.state.published == 0 and world.round.phase == phase:
                    world.clock.advance(2 * STEP_SECONDS)
                    await engine.tick()
                told(phase, time.perf_counter() - begin)
            # Cells are of three in the clients' order; what is over is in the last.
            last = n_clients // 3 - 1
            lost = {min(number // 3, last) for number in before}
            counted = {n for n in range(n_clients) if min(n // 3, last) not in lost}
            assert np.array_equal(world.published(1), world.sum_of(counted, 1))
            record = engine.run.store.published(engine.run.state.published)
            return len(record.contributions)
