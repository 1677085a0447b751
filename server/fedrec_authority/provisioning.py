"""Kits: one folder for each party, with everything it needs and no other party's secrets.

::

    authority/               stays here: this machine is the key authority
    coordinator/             coordinator.toml, catalogue.csv, epoch.json, coordinator.pem and
                             operator.crt
    clients/NAME/            client.toml, authority.pub.json, invitation.pem, and for a trial
                             interactions.csv
    operators/NAME.pem       another operator of the coordinator

A client makes its keys at its first start and applies with its kit's invitation. Once it has
applied, its kit is useless to a thief.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.data import Catalogue, Interactions, partition_users
from fedrec.data.writing import write_interactions
from fedrec.durable import make_private, require_writable, write_whole
from fedrec.errors import KeysError, SettingsError
from fedrec.identity.document import replace_secret
from fedrec.listening import is_own_address, split_address
from fedrec.plan.exposure import (
    SAFE_FLOOR,
    check_own_floor,
    exposed_to_members,
    exposing_sums,
    raised_counts,
)
from fedrec.settings.explain import settings_to_toml
from fedrec.settings.schema import PartiesSettings, Settings
from fedrec.settings.validation import load_settings
from fedrec_authority.folder.authority_folder import AuthorityFolder
from fedrec_authority.folder.folder_changes import FolderChanges, changing
from fedrec_authority.members.cell_placement import cell_size_of

AUTHORITY_KIT, COORDINATOR_KIT, CLIENTS = "authority", "coordinator", "clients"
OPERATORS = "operators"
COORDINATOR_FILE, CLIENT_FILE = "coordinator.toml", "client.toml"
INTERACTIONS_FILE, CATALOGUE_FILE, INVITATION_FILE = (
    "interactions.csv", "catalogue.csv", "invitation.pem",
)  # fmt: skip
_COORDINATORS_DATABASE = "coordinator.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The folder of one party.

    Attributes:
        party: "coordinator", or the client's name.
        command: the command for its owner, run where the folder was copied. If the coordinator's
            address is this machine's own, run it where `provision` was run.
    """

    party: str
    folder: Path
    command: str


def provision(
    settings: Settings,
    into: Path,
    catalogue: Catalogue,
    *,
    interactions: Interactions | None = None,
) -> tuple[Kit, ...]:
    """Create the authority's folder and every party's kit.

    A client becomes a member once it applies.

    Args:
        settings: the federation's settings. `parties` names the parties.
        into: folder for all kits.
        catalogue: the public items.
        interactions: the interactions whose users are distributed over the clients of a trial,
            or None if every client has its own data.

    Raises:
        SettingsError: the parties cannot form this federation, or `into` cannot be written.
        RefusedError: a client would contribute nothing. See `check_own_floor`.
        KeysError: there are kits already, or a coordinator uses the folder.
    """
    parties = settings.parties
    _check_parties(settings, interactions)
    settings = _accepting(settings, len(parties.clients))
    folder = AuthorityFolder(into / AUTHORITY_KIT)
    _check_folder(folder)
    require_writable(into, "--into")
    parts: Sequence[Interactions | None] = [None] * len(parties.clients)
    if interactions is not None:
        parts = partition_users(interactions, len(parties.clients))
    with changing(folder, new=True) as keys:
        authority_is_new = keys.load_or_create()[1]
        if not authority_is_new and keys.last_epoch:
            raise KeysError(
                f"{into} already has the kits of a federation.",
                remedy=f"Add a client with `fedrec provision --add NAME --into {into}`, or choose "
                "another folder with --into. If that command was killed before it printed the "
                "kits, delete the folder and run it again.",
            )
        host, port = split_address(parties.address, "parties.address", to_call=True)
        keys.serve_at([host])
        keys.make_operator()
        keys.rotate(keys.begin(settings.plan, len(catalogue)))
        coordinators = into / COORDINATOR_KIT
        kits = [_coordinator_kit(settings, coordinators, keys, catalogue, host, port)]
        for name, part in zip(parties.clients, parts, strict=True):
            kits.append(_client_kit(settings, into / CLIENTS / name, keys, name, part))
    return tuple(kits)


def add_client(settings: Settings, into: Path, name: str, *, confirm: bool = False) -> Kit:
    """Create one more client's kit, or a new invitation for a client that has not applied.

    Args:
        settings: the federation's settings.
        into: folder of all kits.
        name: the client's name.
        confirm: whether people compare its client id before it becomes a member.

    Raises:
        SettingsError: the name cannot be the name of a kit, or the address is not that of the other
            kits.
        KeysError: the client has applied already, or there are no kits here yet.
    """
    folder = _known_authority(into)
    _check_name("--add", name)
    _check_address(settings, into)
    settings = _accepting(settings, len(settings.parties.clients) + 1)
    with changing(folder) as keys:
        return _client_kit(settings, into / CLIENTS / name, keys, name, None, confirm=confirm)


def add_operator(into: Path, name: str) -> tuple[Path, Path]:
    """Create credentials for one more operator of the coordinator.

    Returns:
        The operator's file, and the list for the coordinator.

    Raises:
        SettingsError: the name cannot be a file name.
        KeysError: there are no kits here yet, or the name is that of the authority's own process.
    """
    folder = _known_authority(into)
    _check_name("--operator", name)
    made = into / OPERATORS / f"{name}.pem"
    with changing(folder) as keys:
        keys.operators.make(keys.authority.issuer, name, made)
    return made, folder.operators.list


def remove_operator(into: Path, name: str) -> Path:
    """Remove an operator from the list for the coordinator. Return the list.

    Raises:
        KeysError: there are no kits here yet, or there is no such operator.
    """
    folder = _known_authority(into)
    with changing(folder) as keys:
        keys.operators.remove(name)
    return folder.operators.list


def presence_words(settings: Settings) -> str:
    """Describe the clients that every round waits for, or return an empty string if there are none.

    With twice as many clients as a cell needs, there are several cells. Rounds proceed without one
    of them if the others are more than may be corrupt.
    """
    plan, guests = settings.plan, settings.parties.go_on
    if not plan.has_cells:
        return ""
    size, core = cell_size_of(plan), len(settings.parties.clients) - len(guests)
    named = f"{', '.join(guests)} may be missing. " if guests else ""
    fewest, n_cells = max(size, plan.rounds.minimum_clients), core // size
    largest = -(-core // max(1, n_cells))
    if core - largest >= fewest and n_cells > _cells_needed(settings):
        return (
            f"{named}Every round consists of whole cells of {size} to {2 * size - 1} clients. "
            "Cells are drawn at random and fixed. If a client is away, its cell sits out and the "
            "others continue."
        )
    who = f"the {core} others" if guests else f"all {core} clients"
    if n_cells > 1 and core - largest >= fewest:
        return (
            f"{named}Every round needs {_cells_needed(settings)} of {n_cells} whole cells of "
            "clients (federation.corrupt_cells). Cells are drawn at random and fixed. If a client "
            "is away, rounds wait and continue automatically when it is back."
        )
    words = (
        f"{named}Every round needs {who}. If a client is away, rounds wait and continue "
        "automatically when it is back. "
    )
    if core > fewest:
        return words + (
            "Rounds no longer wait for a client that leaves for good (`fedrec client leave`), as "
            f"long as {fewest} are left."
            + ("" if guests else " Clients in parties.go_on may be missing from the start.")
        )
    if core > size:
        return words + (
            f"rounds.minimum_clients is {fewest}: if a client is lost for good, the others cannot "
            f"continue. To allow that, lower it to {size} or more before the start."
        )
    return words + (
        f"{core} is the minimum, so no client may be missing. If a client is lost for good, the "
        "others cannot continue and must begin a new federation: run `fedrec provision` again, "
        "with --into another folder."
    )


def _cells_needed(settings: Settings) -> int:
    """Return how many cells a round needs if a roster has several."""
    return settings.federation.corrupt_cells + 1 if settings.plan.counts_by_cell else 1


def _check_cells(settings: Settings) -> None:
    """Refuse a roster that has fewer cells than every round needs."""
    size, core = cell_size_of(settings.plan), len(settings.parties.clients)
    core -= len(settings.parties.go_on)
    if size and 1 < core // size < _cells_needed(settings):
        raise SettingsError(
            f"{core} clients that rounds wait for make {core // size} cells of {size}. With "
            f"federation.corrupt_cells = {settings.federation.corrupt_cells}, every round needs "
            f"{_cells_needed(settings)}.",
            remedy=f"Set federation.corrupt_cells = {core // size - 1}, or name more clients.",
        )


def _known_authority(into: Path) -> AuthorityFolder:
    folder = AuthorityFolder(into / AUTHORITY_KIT)
    if not folder.last_epoch:
        raise KeysError(
            f"There are no kits in {into} yet.",
            remedy="Run `fedrec provision` alone first, or set the kits' folder with --into.",
        )
    return folder


def _check_name(option: str, name: str) -> None:
    try:
        PartiesSettings(clients=[name])
    except ValueError:
        raise SettingsError(
            f"{option}: {name!r} cannot be the name of a folder.",
            remedy="Use letters, digits and . _ - as in hospital-d.",
        ) from None


def _check_address(settings: Settings, into: Path) -> None:
    """Refuse the default address if the other kits have another one, as given with --address."""
    kits = sorted((into / CLIENTS).glob(f"*/{CLIENT_FILE}"))
    if "address" in settings.parties.model_fields_set or not kits:
        return
    known = load_settings(kits[0], environ={}).client.coordinator
    if known != settings.parties.address:
        raise SettingsError(
            f"The settings have no parties.address, and {kits[0]} has {known}.",
            remedy=f"Add --address {known}, or set parties.address.",
        )


def _check_parties(settings: Settings, interactions: Interactions | None) -> None:
    parties, rounds = settings.parties, settings.rounds
    count = len(parties.clients)
    if count < max(1, rounds.minimum_clients):
        raise SettingsError(
            f"parties.clients names {count} clients, but rounds.minimum_clients is "
            f"{rounds.minimum_clients}, so no round could be published.",
            remedy="Add clients to parties.clients, or use --clients a,b,c.",
        )
    _check_guests(settings)
    _check_cells(settings)
    if interactions is not None and interactions.n_users < count:
        raise SettingsError(
            f"The data has {interactions.n_users} users for {count} clients.",
            remedy="Name fewer clients.",
        )
    if interactions is not None:
        # Users are distributed in turn.
        check_own_floor(settings.client.minimum_own_item_users, interactions.n_users // count)


def exposure_words(settings: Settings, n_clients: int) -> str:
    """Describe what one dishonest member could read of other clients, or return an empty string."""
    n_cells = _n_cells(settings, n_clients)
    raised = raised_counts(settings.plan, n_cells)
    if not raised or settings.client.minimum_own_item_users >= SAFE_FLOOR:
        return ""
    accepts = (
        " The kits accept this for their clients (client.accept_member_exposure = true)."
        if exposed_to_members(settings.plan, n_cells)
        else ""
    )
    where = exposing_sums(settings.plan)
    return (
        f"{where[0].upper()}{where[1:]}: {raised}{accepts} To prevent it if clients have many "
        f"users, set client.minimum_own_item_users = {SAFE_FLOOR} or more before you run provision."
    )


def _n_cells(settings: Settings, n_clients: int) -> int:
    size = cell_size_of(settings.plan)
    return (n_clients - len(settings.parties.go_on)) // size if size else 0


def _accepting(settings: Settings, n_clients: int) -> Settings:
    """Return settings whose kits accept what a member could read. See `exposure_words`."""
    exposed = exposed_to_members(settings.plan, _n_cells(settings, n_clients))
    if not exposed or settings.client.minimum_own_item_users >= SAFE_FLOOR:
        return settings
    client = settings.client.model_copy(update={"accept_member_exposure": True})
    return settings.model_copy(update={"client": client})


def _check_guests(settings: Settings) -> None:
    """Refuse guests if rounds wait for no client, or if there are too many guests."""
    plan, guests = settings.plan, settings.parties.go_on
    if not guests:
        return
    if not plan.has_cells:
        raise SettingsError(
            f"parties.go_on names {', '.join(guests)}, but with these settings no client is "
            "required in rounds.",
            remedy="Remove parties.go_on.",
        )
    core = len(settings.parties.clients) - len(guests)
    needed = cell_size_of(plan)
    if core < needed:
        raise SettingsError(
            f"parties.go_on leaves {core} clients that rounds wait for. At least {needed} must "
            'have client.when_away = "wait", to be in every sum.',
            remedy="Name fewer in parties.go_on.",
        )
    if core < plan.rounds.minimum_clients:
        raise SettingsError(
            f"parties.go_on leaves {core} clients that rounds wait for, but rounds.minimum_clients "
            f"is {plan.rounds.minimum_clients}. Guests don't count towards it.",
            remedy=f"Set rounds.minimum_clients = {core}, or name fewer in parties.go_on.",
        )


def _check_folder(folder: AuthorityFolder) -> None:
    """Refuse a coordinator's folder: with both, one machine could read all updates."""
    used = [path for path in (folder.path, folder.path.parent) if _is_coordinators(path)]
    if used:
        raise KeysError(
            f"{used[0]} belongs to a coordinator. The coordinator must not be able to read the key "
            "authority's folder.",
            remedy="Provision on the authority's own machine, into a separate folder (--into).",
        )


def _is_coordinators(path: Path) -> bool:
    return (path / _COORDINATORS_DATABASE).exists() or (path / COORDINATOR_FILE).exists()


def _coordinator_kit(
    settings: Settings,
    path: Path,
    folder: AuthorityFolder,
    catalogue: Catalogue,
    host: str,
    port: int,
) -> Kit:
    _new_folder(path)
    replace_secret(path / folder.epoch_path.name, folder.epoch_path.read_bytes())
    replace_secret(path / folder.coordinator_path.name, folder.coordinator_path.read_bytes())
    operator = folder.operators.list
    replace_secret(path / operator.name, operator.read_bytes())
    catalogue.save(path / CATALOGUE_FILE)
    (path / CATALOGUE_FILE).chmod(0o600)
    local: dict[str, dict[str, object]] = {
        "data": {"catalogue": CATALOGUE_FILE},
        "coordinator": {
            **settings.coordinator.model_dump(exclude_defaults=True),
            "host": host if stays_here(settings) else "0.0.0.0",
            "port": port,
            "state": "state",
            "epoch": folder.epoch_path.name,
            "certificate": folder.coordinator_path.name,
            "operators": operator.name,
        },
    }
    _write_settings(path / COORDINATOR_FILE, settings, local, "The coordinator's settings")
    file = _seen_by_owner(settings, path) / COORDINATOR_FILE
    command = f"fedrec coordinator run {shlex.quote(str(file))}"
    return Kit(party=COORDINATOR_KIT, folder=path, command=command)


def _client_kit(
    settings: Settings,
    path: Path,
    folder: FolderChanges,
    name: str,
    interactions: Interactions | None,
    *,
    confirm: bool = False,
) -> Kit:
    invitation = folder.invite(name, confirm=confirm, now=int(time.time()))
    _new_folder(path)
    replace_secret(path / folder.public_key_path.name, folder.public_key_path.read_bytes())
    replace_secret(path / INVITATION_FILE, invitation.read_bytes())
    if interactions is not None:
        write_interactions(path / INTERACTIONS_FILE, interactions, private=True)
    local: dict[str, dict[str, object]] = {
        "data": {**_own_reading(settings, interactions), "path": INTERACTIONS_FILE},
        "client": {
            **settings.client.model_dump(exclude_defaults=True),
            "coordinator": settings.parties.address,
            "state": "state",
            "authority_key": folder.public_key_path.name,
            "invitation": INVITATION_FILE,
            "label": name,
            **({"when_away": "go_on"} if name in settings.parties.go_on else {}),
        },
    }
    _write_settings(path / CLIENT_FILE, settings, local, f"The settings of {name}")
    file = _seen_by_owner(settings, path) / CLIENT_FILE
    return Kit(party=name, folder=path, command=f"fedrec client run {shlex.quote(str(file))}")


def archived(kit: Kit) -> tuple[Path, str]:
    """Write a kit as one file next to its folder. Return the file and its SHA-256, in hex.

    Raises:
        DiskFull: there is no space for the file.
    """

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        file.add(kit.folder, kit.folder.name, filter=without_owner)
    path = kit.folder.with_name(f"{kit.folder.name}.tar.gz")
    write_whole(path, packed.getvalue(), private=True)
    return path, hashlib.sha256(packed.getvalue()).hexdigest()


def stays_here(settings: Settings) -> bool:
    """Return whether only this machine reaches the coordinator, so that kits are not carried."""
    return is_own_address(split_address(settings.parties.address)[0])


def _seen_by_owner(settings: Settings, kit: Path) -> Path:
    return kit if stays_here(settings) else Path(kit.name)


def _own_reading(settings: Settings, interactions: Interactions | None) -> dict[str, object]:
    """Return how a client reads its own data. A trial's distributed data needs no options."""
    if interactions is not None:
        return {}
    return settings.data.model_dump(exclude_defaults=True, exclude={"path", "catalogue"})


def _new_folder(path: Path) -> None:
    """Create a folder that only its owner may read."""
    make_private(path)
    path.chmod(0o700)


def _write_settings(
    path: Path, settings: Settings, local: Mapping[str, Mapping[str, object]], heading: str
) -> None:
    """Write the plan and a party's own sections. Unset values keep their defaults."""
    content = {**settings.plan.model_dump(), **local}
    Settings.model_validate(content)
    text = settings_to_toml(
        content,
        heading=f"{heading}, made by `fedrec provision`.\nAll parties agree on the sections above "
        "[data]. No edit is needed.",
    )
    write_whole(path, text.encode(), private=True)
