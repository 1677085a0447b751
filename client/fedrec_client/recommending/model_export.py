"""The shared model for others: what the members' sums made, and nothing of this client's users.

Under encryption the coordinator never had the model; everybody who gets the exported file can read
it. So exporting is a client's decision, and the file is readable by its owner only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrec.data import Catalogue
from fedrec.data.writing import prepare_folder
from fedrec.errors import CatalogueMismatch, DataError
from fedrec.formats import ENVIRONMENT_NAME, check_run_folder
from fedrec.ids import RoundId
from fedrec.plan.layout import protection_of
from fedrec.recommender import CATALOGUE_NAME, MODEL_NAME, USERS_NAME
from fedrec.settings.schema import Settings
from fedrec_client.recommending.own_recommender import model_file_of
from fedrec_client.state.held_model import Which, read_held_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """What was exported, and where.

    Attributes:
        version: the round whose result the model is.
        was_hidden: whether the coordinator could never read it.
    """

    model: Path
    catalogue: Path
    version: RoundId
    was_hidden: bool


def export_model(
    settings: Settings,
    folder: Path,
    *,
    which: Which = "best",
    force: bool = False,
) -> ExportedModel:
    """Write the shared model and the catalogue for `Recommender.load`.

    Works beside a running client and without the coordinator. Counts of items that fewer than
    `federation.minimum_item_users` hold become 0: the model does not need them.

    Args:
        settings: the client's settings.
        folder: where to; the folder of the run's own record, or a new one.
        which: the model that measured best on validation, or the latest one.
        force: replace a model that is there.

    Raises:
        StorageError: the state folder holds no model, or the files cannot be written.
        DataError: there is a model already, or the folder is another run's.
        VersionMismatch: the state folder, or the run's folder, has another format.
        SettingsError: the model was made under a parameter set that is gone.
    """
    held = read_held_model(settings, which)
    protection = protection_of(held.plan, len(held.catalogue))
    if (folder / USERS_NAME).exists():
        raise DataError(
            f"{folder} has {USERS_NAME}: it is the folder of a simulation; nothing was changed.",
            remedy="Choose another folder.",
        )
    if (folder / ENVIRONMENT_NAME).exists():
        check_run_folder(folder)
    prepare_folder(folder, MODEL_NAME, force=force)
    _put_catalogue(held.catalogue, folder / CATALOGUE_NAME)
    model_file_of(held).save(folder / MODEL_NAME, private=protection.needs_reveal)
    return ExportedModel(
        model=folder / MODEL_NAME,
        catalogue=folder / CATALOGUE_NAME,
        version=held.version,
        was_hidden=protection.needs_reveal,
    )


def _put_catalogue(catalogue: Catalogue, path: Path) -> None:
    if not path.exists():
        catalogue.save(path)
    elif Catalogue.load(path).fingerprint() != catalogue.fingerprint():
        raise CatalogueMismatch(
            f"{path} is another catalogue than the model's; nothing was changed.",
            remedy="Choose the folder of this federation's run, or a new one.",
        )
