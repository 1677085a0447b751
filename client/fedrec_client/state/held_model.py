"""Read the model in a state folder, without the coordinator and next to a running client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedrec.data import Catalogue
from fedrec.errors import CatalogueMismatch, StorageError
from fedrec.follower.stored_state import FileRef, RunPin
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.agreement import plan_from_json
from fedrec.plan.algorithm import algorithm_of
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec_client.state.client_state import ClientState
from fedrec_client.state.private_store import PrivateStore

Which = Literal["best", "latest"]
_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """A version of the model as a client has it.

    Attributes:
        pin: the run that it belongs to.
        epoch: the key epoch that the client is in.
        private: its users' own parameters, or None while they are the initial ones.
    """

    pin: RunPin
    epoch: int
    plan: Plan
    catalogue: Catalogue
    version: RoundId
    shared: SharedState
    private: PrivateState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name that distinguishes the models of a folder, without reading them.

    Attributes:
        shared, private: names of its files, which follow from their content.
    """

    run: str
    version: RoundId
    shared: str
    private: str


def name_of_held_model(settings: Settings, which: Which) -> ModelName:
    """Return the name of the model that `read_held_model` would return.

    Raises:
        StorageError: the state folder holds no model.
    """
    state = PrivateStore(Path(settings.client.state), read_only=True).state
    version, shared, private = _chosen(state, which)
    return ModelName(
        run=state.pin.run,
        version=version,
        shared=shared.name,
        private="" if private is None else private.name,
    )


def read_held_model(settings: Settings, which: Which) -> HeldModel:
    """Return the model with the best validation, or the latest one.

    A running client deletes the files of a version with the next one. Then the next one is
    returned.

    Raises:
        StorageError: the state folder holds no model, or it is damaged.
        CatalogueMismatch: the local catalogue differs from that of the training.
    """
    for left in reversed(range(_TRIES)):
        name = name_of_held_model(settings, which)
        try:
            return _read(settings, which)
        except StorageError:
            if not left or name_of_held_model(settings, which) == name:
                raise
    raise StorageError("No version was read.")


def _read(settings: Settings, which: Which) -> HeldModel:
    store = PrivateStore(Path(settings.client.state), read_only=True)
    state = store.state
    local = settings.data.catalogue
    catalogue = Catalogue.load(store.catalogue_path if local is None else local)
    if catalogue.fingerprint() != state.pin.catalogue_fingerprint:
        raise CatalogueMismatch(
            "The local catalogue differs from the one with which the model was trained.",
            remedy="Restore the federation's catalogue.",
        )
    version, shared, private = _chosen(state, which)
    plan = plan_from_json(state.pin.plan_json.encode())
    initial = algorithm_of(plan, len(catalogue)).derived.initial_shared
    return HeldModel(
        pin=state.pin,
        epoch=state.epoch,
        plan=plan,
        catalogue=catalogue,
        version=version,
        shared=SharedState.from_bytes(store.read(shared), initial),
        private=None if private is None else store.read_private(private),
    )


def _chosen(state: ClientState, which: Which) -> tuple[RoundId, FileRef, FileRef | None]:
    if which == "best" and state.best is not None:
        return state.best.round, state.best.shared, state.best.private
    if state.shared is None:
        raise StorageError(
            "No round has been published to this client, so there is no model.",
            remedy="Let `fedrec client run` take part in some rounds first.",
        )
    return state.version, state.shared, state.private
