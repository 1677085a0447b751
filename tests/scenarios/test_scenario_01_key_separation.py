"""Scenario 1, KEY-SEP: a coordinator that ran all rounds has no key, and cannot open anything.

Coordinator and clients are processes of their own. Before the coordinator ends, its memory,
environment, folder, database and log are searched for every secret of the clients, the group and
the authority; then the same search is shown to find them where they are.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from integration.support.bench import N_ITEMS, data, plan_of

from fedrec.demo.processes import Processes
from fedrec.demo.workspace import Workspace, prepare
from fedrec.errors import FedrecError
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.protection.tenseal_blocks import BlockCipher
from fedrec.training.layout import protection_of
from fedrec.wire.admin_link import AdminLink


def memory_of(process_id: int) -> bytes:
    """Return everything that a process of this test can write to, end to end."""
    parts = []
    maps = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    with open(f"/proc/{process_id}/mem", "rb", buffering=0) as memory:
        for line in maps:
            where, rights, *_ = line.split()
            start, stop = (int(edge, 16) for edge in where.split("-"))
            if not rights.startswith("rw") or line.endswith("[vvar]"):
                continue
            try:
                memory.seek(start)
                parts.append(memory.read(stop - start))
            except (OSError, ValueError, OverflowError):
                continue
    return b"".join(parts)


def secrets_of(workspace: Workspace) -> dict[str, list[bytes]]:
    """Return pieces of every secret of the federation, in each form that it takes."""
    epoch = KeyEpoch.load(workspace.epoch)
    identities = [Identity.load(state) for state in workspace.client_states]
    _, secrets = open_epoch(
        roster_json=epoch.roster.to_json(),
        server_context=epoch.server_context,
        wrapped=epoch.secrets_for(identities[0].client_id),
        identity=identities[0],
        pinned_authority_key=epoch.roster.authority_key,
    )
    content = secrets.protection_secret
    plan = protection_of(workspace.plan, N_ITEMS).chosen
    cipher = BlockCipher(plan, content[len(epoch.server_context) :])
    key = cipher._context.secret_key().data.data()
    words = b"".join(key[place].to_bytes(8, "little") for place in range(64))
    raw = [secrets.group_key]
    for identity in identities:
        raw.append(identity._signing_key.private_bytes_raw())
        raw.append(identity._exchange_key.private_bytes_raw())
    return {
        "keys of members": [
            form for key in raw for form in (key, key.hex().encode(), base64.b64encode(key))
        ],
        "secret key of the scheme": [words[at : at + 32] for at in range(0, 512, 64)],
        "its file": [content[at : at + 32] for at in range(256, len(content) - 32, 4096)],
    }


def found_in(content: bytes, secrets: dict[str, list[bytes]]) -> list[str]:
    return [name for name, pieces in secrets.items() if any(piece in content for piece in pieces)]


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["bfv", "ckks", "ckks/approximate"])
def test_scenario_01_the_coordinator_has_no_key(tmp_path: Path, protection: str) -> None:
    workspace = prepare(tmp_path, plan_of(protection, total=1), data(), n_clients=3)
    secrets = secrets_of(workspace)
    with Processes(tmp_path / "logs") as processes:
        coordinator = processes.start(
            "coordinator", "coordinator", "run", str(workspace.coordinator_settings)
        )
        address = processes.first_line("coordinator")["address"]
        for number, settings in enumerate(workspace.client_settings):
            processes.start(
                f"client-{number}", "client", "run", str(settings), "--coordinator", address,
                "--json",
            )  # fmt: skip
        link = AdminLink(
            address,
            token=workspace.operators_token,
            root_certificate=workspace.certificate.read_bytes(),
        )
        seen = b""
        try:
            for event in link.events():
                if event.kind == "round published":
                    seen += memory_of(coordinator.pid)
                    environment = Path(f"/proc/{coordinator.pid}/environ").read_bytes()
                    seen += environment
                if event.kind == "run finished":
                    assert not event.fields["failed"]
                    break
        finally:
            link.close()
    assert not processes.failures()
    assert address.encode() in seen, "the memory was not read"
    files = [path for path in workspace.coordinator_state.rglob("*") if path.is_file()]
    assert files
    stored = b"".join(path.read_bytes() for path in [*files, *(tmp_path / "logs").glob("c*")])
    for content in (seen, stored, workspace.epoch.read_bytes()):
        assert found_in(content, secrets) == []
    kept = b"".join(
        path.read_bytes() for state in workspace.client_states for path in state.glob("identity*")
    )
    assert "keys of members" in found_in(kept, secrets), "the search finds nothing anywhere"


@pytest.mark.parametrize("protection", ["bfv", "ckks", "ckks/approximate"])
def test_scenario_01_what_the_coordinator_has_opens_nothing(
    tmp_path: Path, protection: str
) -> None:
    workspace = prepare(tmp_path, plan_of(protection), data(), n_clients=3)
    epoch = KeyEpoch.load(workspace.epoch)
    context = epoch.server_context
    assert len(context) == 56 < 200
    protecting = protection_of(workspace.plan, N_ITEMS)
    protecting.check_context(context)
    stranger = Identity.create("coordinator")
    with pytest.raises(FedrecError):
        open_epoch(
            roster_json=epoch.roster.to_json(),
            server_context=context,
            wrapped=epoch.secrets_for(epoch.roster.members[0].client_id),
            identity=stranger,
            pinned_authority_key=epoch.roster.authority_key,
        )
    for attempt in (b"", context, context + epoch.sealed_secret, b"none"):
        with pytest.raises(FedrecError):
            protecting.member(context, attempt)
    with pytest.raises(FedrecError):
        protecting.check_context(context + b"\0")
    served = json.loads(epoch.to_json())
    assert "group_key" not in json.dumps(served)
