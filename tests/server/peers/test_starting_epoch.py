"""Which key epoch a coordinator starts in: that of its file, or the one installed since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from world.federation import DemoData, Workspace, keep, prepare, rotate

from fedrec.data import generate
from fedrec.errors import DamagedFile, KeysError
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.plan.schema import Plan
from fedrec.settings.schema import Settings
from fedrec.settings.validation import load_settings
from fedrec.training.round_vectors import RoundVectors
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_lab.audit.wire.known import Known
from fedrec_server.app import Coordinator
from fedrec_server.federation import PublicCatalogue

PLAN = Plan.model_validate({"algorithm": {"dim": 4}, "protection": {"name": "bfv"}})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = generate(n_users=12, n_items=30, n_clusters=2, interactions_per_user=5)
    data = DemoData(name="test", interactions=made.interactions, catalogue=made.catalogue, note="")
    (tmp_path / "federation").mkdir()
    return prepare(tmp_path / "federation", PLAN, data, n_clients=3)


@pytest.fixture
def settings(workspace: Workspace) -> Settings:
    found = load_settings(workspace.parties.coordinator)
    local = found.coordinator.model_copy(update={"reserve_bytes": 0, "port": 0})
    return found.model_copy(update={"coordinator": local})


@pytest.fixture
def second(workspace: Workspace) -> KeyEpoch:
    """The next epoch, made in the authority's folder; its file stays as it was."""
    first = workspace.epoch.read_bytes()
    made = rotate(AuthorityFolder(workspace.epoch.parent))
    workspace.epoch.write_bytes(first)
    return made


def started(settings: Settings, *install: KeyEpoch) -> KeyEpoch:
    """Start a coordinator, hand epochs in, stop it; return the epoch that it was in at last."""
    assert settings.data.catalogue is not None
    catalogue = PublicCatalogue.load(Path(settings.data.catalogue))
    spec = RoundVectors.of(settings.plan, catalogue.n_items)
    server = Coordinator.from_settings(settings, catalogue, spec)

    async def life() -> KeyEpoch:
        await server.start()
        try:
            for keys in install:
                await server.engine.rotation.install(keys.to_json())
            return server.engine.run.federation.keys
        finally:
            await server.stop(grace_seconds=0.0)

    return asyncio.run(life())


def bundles(settings: Settings) -> list[KeyEpoch]:
    folder = Path(settings.coordinator.state) / "epochs"
    return [KeyEpoch.from_json(path.read_bytes()) for path in sorted(folder.iterdir())]


def test_an_installed_epoch_makes_the_file_superfluous(settings, second, workspace):
    first = KeyEpoch.load(workspace.epoch)
    assert started(settings, second) == second
    workspace.epoch.unlink()
    assert started(settings) == second
    secret = first.to_json().split(b'"sealed_secret"')[1][:200]
    state = Path(settings.coordinator.state)
    kept = [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    assert kept and not any(secret in content for content in kept)
    assert Known.of(settings).context == second.server_context


def test_a_newer_file_takes_the_place_of_what_was_installed(settings, second, workspace):
    assert started(settings, second) == second
    third = rotate(AuthorityFolder(workspace.epoch.parent))
    assert KeyEpoch.load(workspace.epoch) == third
    assert started(settings) == third
    assert bundles(settings) == [third], "nothing of the second epoch is kept"
    workspace.epoch.unlink()
    assert started(settings) == third


def test_a_file_of_another_authority_is_refused(settings, second, workspace, tmp_path):
    assert started(settings, second) == second
    other = AuthorityFolder(tmp_path / "other")
    people = [Identity.create(name).public for name in "abc"]
    for number in (1, 2, 9):
        keep(other, other.begin(PLAN, 30).of_exactly(people, 100))
        rotate(other, number=number).save(workspace.epoch)
        with pytest.raises(KeysError):
            started(settings)
    workspace.epoch.unlink()
    assert started(settings) == second, "what was refused changed nothing"


def test_without_file_and_installed_epoch_there_is_nothing_to_start_from(settings, workspace):
    workspace.epoch.unlink()
    with pytest.raises(KeysError, match=r"epoch\.json does not exist"):
        started(settings)


def test_a_damaged_bundle_is_named(settings, second, workspace):
    started(settings, second)
    workspace.epoch.unlink()
    (bundle,) = (Path(settings.coordinator.state) / "epochs").iterdir()
    bundle.write_bytes(b"{}")
    with pytest.raises(DamagedFile, match="damaged"):
        started(settings)
