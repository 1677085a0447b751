"""Whose run a state folder serves: tied to one at first use, checked ever after, left on request.

What follows is a state to commit; nothing is changed here.
"""

from __future__ import annotations

from pathlib import Path

from fedrec.errors import CoordinatorWentBack, PlanMismatch
from fedrec.follower.stored_state import PausedCell, RunPin, StoredState
from fedrec.ids import RoundId
from fedrec.provenance import Provenance


def bound(
    stored: StoredState | None,
    pin: RunPin,
    epoch: int,
    *,
    new_run: bool,
    provenance: Provenance | None,
    folder: Path,
) -> StoredState:
    """Return the state of a folder that serves a run; the same one where nothing changes.

    Args:
        stored: what the folder holds; None before its first run.
        pin: what must be equal for as long as the folder serves the run.
        epoch: the epoch that was opened; never lower than before.
        new_run: leave the present run for the coordinator's, and forget its models.
        provenance: what trains a run that begins here.
        folder: for people.

    Raises:
        PlanMismatch: the folder belongs to another run, plan, catalogue or set of users.
        CoordinatorWentBack: the epoch is lower than before.
    """
    if stored is None:
        return StoredState(pin=pin, epoch=epoch, provenance=provenance)
    if stored.pin.run != pin.run:
        _check_leaving(stored, pin, epoch, new_run=new_run, folder=folder)
        return _left_for(stored, pin, epoch, provenance)
    changed = [
        name for name in RunPin.model_fields if getattr(stored.pin, name) != getattr(pin, name)
    ]
    if changed:
        raise PlanMismatch(
            f"{folder} was made with another {' and '.join(changed)} of run {pin.run}.",
            remedy="Check client.state (--state) and data.path (--data), restore what was "
            "changed (the data file's users, the catalogue or the plan), or start with a new "
            "state folder.",
        )
    if epoch < stored.epoch:
        raise epoch_went_back(stored.epoch, epoch)
    if epoch == stored.epoch:
        return stored
    # Tags under the old epoch's key mean nothing to the new one's members.
    # What was staged is of a round that the coordinator abandoned with its epoch.
    staged = stored.staged
    return stored.model_copy(
        update={
            "epoch": epoch,
            "is_of_epoch": False,
            "staged": None if staged is None else staged.model_copy(update={"closed": True}),
            "masking": None,
            "refused_sums": 0,
            "paused": _still_paused(stored, epoch),
        }
    )


def epoch_went_back(known: int, said: int) -> CoordinatorWentBack:
    """Return the error of a coordinator whose key epoch is older than this client's."""
    return CoordinatorWentBack(
        f"The coordinator went back from key epoch {known} to {said}. This client waits and keeps "
        "what it has."
    )


def _check_leaving(
    stored: StoredState, pin: RunPin, epoch: int, *, new_run: bool, folder: Path
) -> None:
    """Refuse to leave the present run for one that was left, is of an older epoch, or unasked."""
    if pin.run in stored.left_runs:
        raise PlanMismatch(
            f"{folder} took part in run {pin.run} before and left it.",
            remedy="Start with a new state folder, or call the coordinator of the new run.",
        )
    if epoch < stored.epoch:
        raise PlanMismatch(
            f"The coordinator's run is in key epoch {epoch}; this client knows {stored.epoch}, "
            "and members may have been revoked since.",
            remedy="Ask the operator to install the newest epoch.",
        )
    if not new_run:
        raise PlanMismatch(
            f"{folder} belongs to run {stored.pin.run}; the coordinator runs {pin.run}.",
            remedy="Start with a new state folder, or give --new-run to leave the old run.",
        )


def _left_for(
    stored: StoredState, pin: RunPin, epoch: int, provenance: Provenance | None
) -> StoredState:
    """Return the first state of another run: what was said about users stays said."""
    same = epoch == stored.epoch
    return StoredState(
        pin=pin,
        epoch=epoch,
        provenance=provenance,
        left_runs=(*stored.left_runs, stored.pin.run),
        refused_sums=stored.refused_sums if same else 0,
        paused=_still_paused(stored, epoch),
        spent=stored.spent,
        counted=stored.counted,
    )


def _still_paused(stored: StoredState, epoch: int) -> tuple[PausedCell, ...]:
    """Return the cells that are paused in an epoch whose roster cannot say so."""
    same = epoch == stored.epoch
    # A new run, too, has a round of each of these numbers.
    return tuple(
        one.model_copy(update={"round": RoundId(0)})
        for one in stored.paused
        if same or one.newest >= epoch
    )
