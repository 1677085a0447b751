"""A checkpoint of a stopped simulation, from which it resumes to the same bits.

`checkpoint.json` names its files by the SHA-256 of their content and is replaced atomically. A
crash leaves the old checkpoint or the new one. The folder holds private vectors: mode 0700, files
0600.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedrec.data.splits import UserSplit
from fedrec.durable import write_whole
from fedrec.environment import Provenance
from fedrec.errors import SettingsError, StorageError
from fedrec.formats import CHECKPOINT_FILE, check_format, format_number
from fedrec.ids import RoundId, digest
from fedrec.model.block_folder import BlockFolder
from fedrec.model.state import PrivateState, SharedState
from fedrec.model.tables import BLOCKS, names_in, read_manifest
from fedrec.plan.agreement import plan_to_json
from fedrec.plan.schema import PLAN_FORM
from fedrec.plan.travelling_rows import Cells
from fedrec.settings.schema import Settings
from fedrec.state_folder import FolderLock
from fedrec_lab.reports.round_report import RoundReport
from fedrec_lab.simulation.result import Version

_FORMAT = "fedrec simulation"
_VERSION = 4
_DAMAGED = "Start a new run, or restore the folder from a backup."


def simulation_identity(
    settings: Settings,
    catalogue_fingerprint: str,
    users: UserSplit,
    *,
    n_clients: int = 1,
    cells: Cells = (),
    form: int = PLAN_FORM,
) -> str:
    """Return all that must be equal to resume a simulation: plan, catalogue, data and cells.

    The number of clients is not part of it, because it changes no bit of the model. The exceptions
    are given cells, and a floor on each client's own holders. The training path is not part of it
    either: a checkpoint's `Provenance` has it.
    """
    least = settings.client.minimum_own_item_users
    own_floor = () if least == 1 else (least, n_clients)
    dealt = (str(n_clients), *map(str, cells)) if cells else ()
    arrays = (users.train_indptr, users.train_items, users.validation_items, users.test_items)
    return digest(
        "fedrec simulation v2",
        plan_to_json(settings.plan.in_form(form)),
        catalogue_fingerprint,
        len(users),
        *users.user_ids,
        *arrays,
        *own_floor,
        *dealt,
    ).hex()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Everything that the next round depends on.

    Attributes:
        identity: see `simulation_identity`.
        provenance: what trained it.
        best: None as long as nothing was measured.
    """

    identity: str
    provenance: Provenance
    last: Version
    best: Version | None
    rounds: tuple[RoundReport, ...]


class CheckpointFolder:
    """Keeps one checkpoint inside a run folder.

    Private tables that are files stay in the run's folder of blocks. The checkpoint lists the
    blocks that it needs.
    """

    def __init__(self, run_folder: Path) -> None:
        self._blocks = BlockFolder.at(run_folder / BLOCKS)
        self._run_folder = run_folder
        self._lock: FolderLock | None = None
        self._index = run_folder / CHECKPOINT_FILE
        self.path = self._folder = self._index.parent

    def __str__(self) -> str:
        return f"The checkpoint {self._index}"

    @property
    def exists(self) -> bool:
        """Whether there is something to resume."""
        return self._index.is_file()

    def open(self) -> None:
        """Lock the run for this process. Its files stay until `load` or `save`.

        Raises:
            FolderInUse: another process trains in the run folder.
            StorageError: the folder cannot be written.
        """
        self._make()
        # `FolderLock.is_held` of another process may have the lock for a moment.
        self._lock = FolderLock(
            self._run_folder, "the run", name=f"{self._folder.name}/lock", wait_seconds=0.2
        )
        self._blocks.keep(path.name for path in (self._run_folder / BLOCKS).glob("*.bin"))

    def close(self) -> None:
        """Release the run for other processes, and remove the folder if it is empty."""
        if self._lock is not None:
            # Without its index a checkpoint may still be restored, so that its files stay.
            if not self.exists and not any(self._folder.glob("*.safetensors")):
                shutil.rmtree(self._folder, ignore_errors=True)
            self._lock.release()
            self._lock = None

    def save(self, checkpoint: Checkpoint, initial: SharedState) -> None:
        """Replace the checkpoint in one step.

        Args:
            initial: the run's first version, whose rows are left out where nothing trains them.

        Raises:
            StorageError: the checkpoint cannot be written. The old one is intact.
        """
        self._make()
        record: dict[str, object] = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": checkpoint.identity,
            "provenance": asdict(checkpoint.provenance),
            "last": self._store(checkpoint.last, initial),
            "best": None if checkpoint.best is None else self._store(checkpoint.best, initial),
            "rounds": [report.to_json() for report in checkpoint.rounds],
        }
        write_whole(self._index, json.dumps(record).encode(), private=True)
        self._forget_all_but(record)

    def check_format(self) -> None:
        """Refuse a checkpoint of another format. There may be none.

        Raises:
            VersionMismatch: naming the numbers.
            StorageError: the checkpoint is damaged.
        """
        if not self.exists:
            return
        try:
            record = json.loads(self._index.read_bytes())
            if record["format"] != _FORMAT:
                raise ValueError(f"its format is {record['format']!r}, expected {_FORMAT!r}")
            found = format_number(record.get("version"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"The checkpoint {self._index} cannot be read: {error}.", remedy=_DAMAGED
            ) from error
        check_format(found, _VERSION, str(self), anew="start a new run")

    def load(self, identities: Sequence[str], initial: Callable[[], SharedState]) -> Checkpoint:
        """Return the checkpoint of a simulation.

        Args:
            identities: those of all forms of the plan.
            initial: returns the run's first version.

        Raises:
            StorageError: there is none, or it is damaged. Nothing was deleted.
            SettingsError: the checkpoint belongs to different settings or data.
            VersionMismatch: the checkpoint has a different format.
        """
        self.check_format()
        try:
            record = json.loads(self._index.read_bytes())
            self._check(record, identities)
            provenance = Provenance.from_json(record["provenance"])
            last = self._fetch(record["last"], initial)
            best = None if record["best"] is None else self._fetch(record["best"], initial)
            rounds = tuple(map(RoundReport.from_json, record["rounds"]))
        except FileNotFoundError as error:
            raise StorageError(
                f"There is no checkpoint to resume from: {error.filename} does not exist.",
                remedy="Pass the run folder of a simulation that was stopped, or start a new one.",
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"The checkpoint {self._index} cannot be read: {error}.", remedy=_DAMAGED
            ) from error
        self._keep_blocks()
        return Checkpoint(
            identity=record["identity"], provenance=provenance, last=last, best=best, rounds=rounds
        )

    def remove(self) -> None:
        """Delete the checkpoint of a simulation whose result is stored."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._blocks.keep(())

    def _make(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._folder} cannot be made: {error}.", remedy="Name a writable run folder."
            ) from error

    def _store(self, version: Version, initial: SharedState) -> dict[str, object]:
        return {
            "round": version.round,
            "validation_ndcg": version.validation_ndcg,
            "shared": self._put("shared", lambda: version.shared.parts(initial)),
            "private": self._put("private", version.private.parts),
        }

    def _put(self, kind: str, parts: Callable[[], Iterable[bytes]]) -> str:
        hashed = hashlib.sha256()
        for part in parts():
            hashed.update(part)
        name = f"{kind}-{hashed.hexdigest()}.safetensors"
        if not (self._folder / name).exists():
            write_whole(self._folder / name, parts(), private=True)
        return name

    def _fetch(self, stored: dict[str, object], initial: Callable[[], SharedState]) -> Version:
        ndcg = stored["validation_ndcg"]
        return Version(
            round=RoundId(int(str(stored["round"]))),
            shared=SharedState.from_bytes(
                self._checked(str(stored["shared"])).read_bytes(), initial
            ),
            private=PrivateState.open(self._checked(str(stored["private"])), self._blocks),
            validation_ndcg=None if ndcg is None else float(str(ndcg)),
        )

    def _checked(self, name: str) -> Path:
        """Return the path of a checkpoint's file, after comparing it with its digest."""
        if Path(name).name != name:
            raise ValueError(f"{name!r} does not belong to the checkpoint")
        path = self._folder / name
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found not in name:
            raise ValueError(f"{name} has the SHA-256 {found}")
        return path

    def _forget_all_but(self, record: dict[str, object]) -> None:
        kept = json.dumps([record["last"], record["best"]])
        for path in self._folder.glob("*.safetensors"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
        self._keep_blocks()

    def _keep_blocks(self) -> None:
        needed: set[str] = set()
        for path in self._folder.glob("private-*"):
            needed |= names_in(read_manifest(path) or {})
        self._blocks.keep(needed)

    @staticmethod
    def _check(record: dict[str, object], identities: Sequence[str]) -> None:
        if record["identity"] not in identities:
            raise SettingsError(
                "The checkpoint belongs to other settings, other data or other cells than these.",
                remedy="Resume with the run folder's own resolved.toml and the same data file, "
                "with the same clients and cells as before, or start a new run.",
            )
