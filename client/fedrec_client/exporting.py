"""The shared model for others: what the members' sums made, and nothing of this client's users.

Under encryption the coordinator never had the model; whoever gets the exported file can read it.
So exporting is a client's decision, and the file is readable by its owner only. A model made of
sums that were revealed with noise left in them leaves under flooding alone: two such sums may
give the key away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fedrec.config.algorithm import algorithm_of
from fedrec.config.schema import Settings
from fedrec.data import Catalogue
from fedrec.data.writing import prepare_folder
from fedrec.errors import CatalogueMismatch, DataError, RefusedError, SettingsError
from fedrec.formats import ENVIRONMENT_NAME, check_run_folder
from fedrec.ids import RoundId
from fedrec.model.state import SharedState
from fedrec.protection import ProtectionPlan
from fedrec.protection.flooding import Flooding, system_gaussian
from fedrec.recommender import CATALOGUE_NAME, MODEL_NAME, USERS_NAME, ModelFile
from fedrec.training.layout import Layout, protection_of
from fedrec_client.held_model import HeldModel, Which, read_held_model
from fedrec_client.releases import MOST_EXPORTS, charge_release

__all__ = ["ExportedModel", "Flooded", "export_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """What was exported, and where.

    Attributes:
        version: the round whose result the model is.
        was_hidden: whether the coordinator could never read it.
        flooded: what was added to an approximate model; None where nothing was.
    """

    model: Path
    catalogue: Path
    version: RoundId
    was_hidden: bool
    flooded: Flooded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flooded:
    """What flooding did to a model.

    Attributes:
        deviation: standard deviation of the noise in every value.
        model_deviation: standard deviation of the model's own values, before.
        releases: exports of this client in the federation, this one included.
        most_releases: as many are allowed.
    """

    deviation: float
    model_deviation: float
    releases: int
    most_releases: int


def export_model(
    settings: Settings,
    folder: Path,
    *,
    which: Which = "best",
    force: bool = False,
    flood: bool = False,
) -> ExportedModel:
    """Write the shared model and the catalogue for `Recommender.load`.

    Works beside a running client and without the coordinator. Counts of items that fewer than
    `federation.minimum_item_users` hold become 0: the model does not need them.

    Args:
        settings: the client's settings.
        folder: where to; the folder of the run's own record, or a new one.
        which: the model that measured best on validation, or the latest one.
        force: replace a model that is there.
        flood: add the noise under which an approximate model may leave.

    Raises:
        StorageError: the state folder holds no model, or the files cannot be written.
        DataError: there is a model already, or the folder is another run's.
        VersionMismatch: the state folder, or the run's folder, has another format.
        RefusedError: the model is made of values that were not rounded to exact sums and
            shall not be flooded, or this client's releases are spent.
        SettingsError: an exact model is asked to be flooded.
    """
    held = read_held_model(settings, which)
    protection = protection_of(held.plan, len(held.catalogue))
    chosen = protection.chosen
    if not chosen.exact and not flood:
        raise RefusedError(
            f"The sums of {held.plan.protection.name}/{chosen.preset} are approximate: "
            "what was decrypted carries noise that gives the key away, and must not leave.",
            remedy="Run the federation with a parameter set whose sums are exact, or export with "
            "--flood, which adds noise that spoils the model.",
        )
    if chosen.exact and flood:
        raise SettingsError(
            f"The sums of {held.plan.protection.name}/{chosen.preset} are exact: there is no "
            "noise to hide.",
            remedy="Leave --flood out.",
        )
    if (folder / USERS_NAME).exists():
        raise DataError(
            f"{folder} has {USERS_NAME}: it is the folder of a simulation; nothing was changed.",
            remedy="Choose another folder.",
        )
    if (folder / ENVIRONMENT_NAME).exists():
        check_run_folder(folder)
    prepare_folder(folder, MODEL_NAME, force=force)
    _put_catalogue(held.catalogue, folder / CATALOGUE_NAME)
    model, flooded = _model_file(held), None
    if not chosen.exact:
        # Charged before anything leaves: a crash costs a release, never the key.
        model, flooded = _flooded(model, held, chosen, Path(settings.client.state))
    model.save(folder / MODEL_NAME, private=protection.needs_reveal)
    return ExportedModel(
        model=folder / MODEL_NAME,
        catalogue=folder / CATALOGUE_NAME,
        version=held.version,
        was_hidden=protection.needs_reveal,
        flooded=flooded,
    )


def _flooded(
    model: ModelFile, held: HeldModel, chosen: ProtectionPlan, state: Path
) -> tuple[ModelFile, Flooded]:
    """Return the model under noise as wide as all members' budgets together need."""
    # Every member has a budget of its own; there are no more members than users.
    members = held.plan.federation.maximum_users
    flooding = Flooding(plan=chosen, n_sums=held.version, n_releases=members * MOST_EXPORTS)
    layout = Layout.largest(held.plan, len(held.catalogue))
    deviation = max(
        tensor.step * flooding.deviation(number)
        for number, tensor in enumerate(layout.tensors)
        if tensor.signed and tensor.fraction_bits > 0
    )
    used = charge_release(
        state, federation=held.pin.federation, epoch=held.epoch, version=held.version
    )
    clean = {name: np.asarray(value) for name, value in model.shared.tensors.items()}
    noisy = {
        name: (value + deviation * system_gaussian(value.size).reshape(value.shape)).astype(
            value.dtype
        )
        for name, value in clean.items()
    }
    spread = np.concatenate([value.reshape(-1) for value in clean.values()]).std()
    shared = SharedState(MappingProxyType(noisy), model.shared.holders)
    return replace(model, shared=shared), Flooded(
        deviation=deviation,
        model_deviation=float(spread),
        releases=used,
        most_releases=MOST_EXPORTS,
    )


def _put_catalogue(catalogue: Catalogue, path: Path) -> None:
    if not path.exists():
        catalogue.save(path)
    elif Catalogue.load(path).fingerprint() != catalogue.fingerprint():
        raise CatalogueMismatch(
            f"{path} is another catalogue than the model's; nothing was changed.",
            remedy="Choose the folder of this federation's run, or a new one.",
        )


def _model_file(held: HeldModel) -> ModelFile:
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
