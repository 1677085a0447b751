"""A `Recommender` of the model in a state folder, for this client's own users.

What needs torch is done only where the algorithm asks for it: parameters of users that follow from
the version (`Algorithm.refresh`), or the initial ones.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from fedrec.data import UserSplit
from fedrec.data.settings import DataSettings
from fedrec.data.source import check_one_party, read_users
from fedrec.data.splits import leave_one_out, undivided
from fedrec.errors import StorageError
from fedrec.follower.stored_state import users_digest
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.algorithm import algorithm_of
from fedrec.recommender import ModelFile, Recommender, UsersFile
from fedrec.settings.schema import ClientSettings, Settings
from fedrec_client.state.held_model import HeldModel, Which, read_held_model


def own_recommender(settings: Settings, which: Which = "best") -> Recommender:
    """Return the model of a client's state folder with all of its users.

    Works beside a running client and without the coordinator.

    Raises:
        SettingsError: the data's settings are not for one party alone.
        StorageError: the state folder holds no model, or other users' vectors.
        CatalogueMismatch: the local catalogue is not the one that it was trained with.
        DataError: the data cannot be used.
    """
    check_one_party(settings.data)
    held = read_held_model(settings, which)
    users = users_of(settings.data, held)
    known = UsersFile.of(users, private_of(settings.client, held, users))
    return Recommender(model_file_of(held), held.catalogue, known)


def users_of(data: DataSettings, held: HeldModel) -> UserSplit:
    """Return the client's users, if they are those whose vectors are stored.

    What is held out of training is told apart where something is to be trained, and nowhere else.

    Raises:
        StorageError: they are others.
        DataError: the data cannot be used.
    """
    check_one_party(data)
    divide = leave_one_out if needs_training_code(held) else undivided
    users, _ = read_users(data, held.catalogue, reader="a client", divide=divide)
    if users_digest(users) != held.pin.users:
        raise StorageError(
            "The data file has other users than those whose vectors are stored.",
            remedy="Use the data file that the client runs with.",
        )
    return users


def needs_training_code(held: HeldModel) -> bool:
    """Return whether users' parameters have to be made, which takes torch."""
    algorithm = algorithm_of(held.plan, len(held.catalogue))
    return algorithm.refreshes or held.private is None


def private_of(client: ClientSettings, held: HeldModel, users: UserSplit) -> PrivateState:
    """Return the users' own parameters as they belong to the version."""
    if held.private is not None and not needs_training_code(held):
        return held.private
    from fedrec.training.learner import Learner

    learner = Learner(
        held.plan,
        len(held.catalogue),
        device=client.device,
        memory_mib=client.memory_mib,
        device_memory_mib=client.device_memory_mib,
        threads=client.threads,
    )
    private = learner.initial_private(users) if held.private is None else held.private
    return learner.refreshed(held.shared, users, private)


def model_file_of(held: HeldModel) -> ModelFile:
    """Return the shared model without what recommending does not need.

    Counts of items that fewer than `federation.minimum_item_users` hold become 0.
    """
    holders, least = held.shared.holders, held.plan.federation.minimum_item_users
    if holders is not None:
        holders = np.where(holders >= least, holders, 0).astype(np.int64)
    algorithm = algorithm_of(held.plan, len(held.catalogue))
    needed = {name: held.shared.tensors[name] for name in algorithm.recommending}
    return ModelFile(
        plan=held.plan,
        catalogue_fingerprint=held.pin.catalogue_fingerprint,
        round=held.version,
        shared=SharedState(MappingProxyType(needed), holders),
    )
