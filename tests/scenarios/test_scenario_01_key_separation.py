"""Scenario 1, KEY-SEP: a coordinator that ran all rounds has no key, and cannot open anything.

The coordinator is a process of its own. Before the coordinator ends, its memory,
environment, folder, database, log and a recording of its traffic are searched for every secret of
the clients and the group; then the same search is shown to find them where they are.

Under masks there is no key of the scheme. What stays with the clients is what takes the masks off:
both X25519 keys that a client makes for a round, and every share of its mask key, since no client
drops out here. Seeds of the clients' own masks and their shares are no secret at the end of a
round: clients hand them over for the survivors, once the set of survivors is signed.
"""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from scenarios.support.searching import found_in, without_empty_pages
from world.bench import N_ITEMS, Bench, data, plan_of
from world.clock import poll
from world.federation import prepare

from fedrec.errors import FedrecError
from fedrec.follower.patient_link import Backoff, StopSwitch
from fedrec.identity.certificates import Credentials
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.plan.layout import protection_of
from fedrec.protection.ciphertext_blocks import BlockCipher
from fedrec.protection.masks import Participant
from fedrec.protection.masks.participant import ParticipantState
from fedrec.wire.admin_link import AdminLink
from fedrec_client.app import ClientApp
from fedrec_lab.demo.parties import Processes


def memory_of(process_id):
    """Return everything that a process of this test has written to, end to end."""
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
                parts.append(without_empty_pages(memory.read(stop - start)))
            except (OSError, ValueError, OverflowError):
                continue
    return b"".join(parts)


def secrets_of(workspace):
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
    raw = [secrets.group_key]
    for identity in identities:
        raw.append(identity._signing_key.private_bytes_raw())
        raw.append(identity._exchange_key.private_bytes_raw())
    found = {
        "keys of members": [
            form for key in raw for form in (key, key.hex().encode(), base64.b64encode(key))
        ],
    }
    content = secrets.protection_secret[len(epoch.server_context) :]
    protection = protection_of(workspace.plan, N_ITEMS)
    if workspace.plan.protection.name == "paillier":
        found["secret key of the scheme"] = forms_of_paillier(content, modulus_of(epoch))
    elif protection.needs_reveal:
        cipher = BlockCipher(protection.chosen, content)
        key = cipher._context.secret_key().data.data()
        words = b"".join(key[place].to_bytes(8, "little") for place in range(64))
        found["secret key of the scheme"] = [words[at : at + 32] for at in range(0, 512, 64)]
        found["its file"] = [content[at : at + 32] for at in range(256, len(content) - 32, 4096)]
    return found


def modulus_of(epoch):
    """Return the public modulus of an epoch under paillier."""
    return int.from_bytes(epoch.server_context[56:], "big")


def forms_of_paillier(content, modulus):
    """Return pieces of what only the key has, in either order of bytes and as text.

    Pieces are of the lower half: the upper one of (p - 1)(q - 1) is that of the public p q.
    """
    step = len(content) // 4
    numbers = [int.from_bytes(content[at : at + step], "big") for at in range(0, 4 * step, step)]
    p, q, *_ = numbers
    assert p * q == modulus
    pieces = []
    for number in (*numbers, p * p, q * q, (p - 1) * (q - 1)):
        raw = number.to_bytes(256, "little")
        pieces += [raw[:32], raw[8:40], raw[:32][::-1], raw[8:40][::-1]]
        pieces += [str(number).encode()[-40:], f"{number:x}".encode()[-40:]]
    assert {len(piece) for piece in pieces} == {32, 40}
    return pieces


class Served:
    """A coordinator's process that ran a federation to its end, and everything that it had.

    Attributes:
        memory: what it could write to, and its environment, after each published round.
        stored: its folder, the logs of all processes, and the recording of its traffic.
    """

    def __init__(self, folder, workspace):
        self._folder = folder
        self._workspace = workspace
        self._process_id = 0
        self.memory = b""
        self.stored = b""

    def beside(self, bench):
        """Run the clients in this process, to the end of the run."""
        with (
            ThreadPoolExecutor(max_workers=3) as clients,
            self.running() as (_, address),
        ):
            working = [
                clients.submit(
                    ClientApp(
                        bench.client_settings(number, address),
                        backoff=Backoff(StopSwitch(), maximum_attempts=20),
                    ).run
                )
                for number in range(3)
            ]
            self.follow(address)
            assert {client.result().failed for client in working} == {False}

    @contextmanager
    def running(self, *started):
        """Start the coordinator; in the end take everything that it leaves.

        Args:
            started: the processes that are started meanwhile, by name; they end by themselves.
        """
        wire = self._folder / "wire"
        with Processes(self._folder / "logs") as processes:
            coordinator = processes.start(
                "coordinator", "coordinator", "run", str(self._workspace.parties.coordinator),
                "--record-wire", str(wire), talks=True,
            )  # fmt: skip
            address = processes.first_line("coordinator")["address"]
            self._process_id = coordinator.pid
            yield processes, address
            # The run is over: whoever is ended now would leave with the signal.
            poll(lambda: not processes.running(started), "the clients' end")
        assert not processes.failures()
        assert address.encode() in self.memory, "the memory was not read"
        files = [path for path in self._workspace.coordinator_state.rglob("*") if path.is_file()]
        recorded = [path for path in wire.rglob("*") if path.is_file()]
        logs = (self._folder / "logs").glob("c*")
        assert files and recorded
        self.stored = b"".join(path.read_bytes() for path in [*files, *recorded, *logs])

    def follow(self, address):
        """Look into the coordinator's memory after each round, until the run is over."""
        link = AdminLink(address, Credentials.load(self._workspace.operator, "the test"))
        try:
            for event in link.events():
                if event.kind == "round published":
                    self.memory += memory_of(self._process_id)
                    self.memory += Path(f"/proc/{self._process_id}/environ").read_bytes()
                if event.kind == "run finished":
                    assert not event.fields["failed"]
                    break
        finally:
            link.close()

    def assert_none_of(self, secrets):
        for content in (self.memory, self.stored, self._workspace.epoch.read_bytes()):
            assert found_in(content, secrets) == []
        states = self._workspace.client_states
        files = [path for state in states for path in state.glob("identity*")]
        kept = b"".join(path.read_bytes() for path in files)
        assert "keys of members" in found_in(kept, secrets), "the search finds nothing anywhere"


def test_the_search_finds_a_piece_wherever_it_begins():
    piece, other = bytes(4) + b"secret\0", b"secret2"
    for before in range(9):
        content = bytes(before) + piece + bytes(9 - before)
        assert found_in(content, {"absent": [other], "there": [other, piece]}) == ["there"]
        assert found_in(content[: before + len(piece)], {"there": [piece]}) == ["there"]
        assert found_in(content[: before + len(piece) - 1], {"there": [piece]}) == []
    page = 4096
    memory = bytes(page) + piece.rjust(page) + bytes(page) + b"tail"
    assert without_empty_pages(memory) == piece.rjust(page) + b"tail"


@pytest.mark.slow
def test_scenario_01_the_coordinator_has_no_key(tmp_path):
    workspace = prepare(tmp_path, plan_of("bfv", total=1), data(), n_clients=3)
    secrets = secrets_of(workspace)
    served = Served(tmp_path, workspace)
    served.beside(Bench(workspace=workspace))
    served.assert_none_of(secrets)


@pytest.mark.long
@pytest.mark.parametrize("protection", ["ckks", "paillier/packed-2048"])
def test_scenario_01_with_clients_that_write_logs(tmp_path, protection):
    """All parties are processes, whose logs are searched, too."""
    workspace = prepare(tmp_path, plan_of(protection, total=1), data(), n_clients=3)
    secrets = secrets_of(workspace)
    served = Served(tmp_path, workspace)
    names = [f"client-{number}" for number in range(3)]
    with served.running(*names) as (processes, address):
        for name, settings in zip(names, workspace.parties.clients, strict=True):
            processes.start(
                name, "client", "run", str(settings), "--set", f"client.coordinator={address}",
                "--json",
            )  # fmt: skip
        served.follow(address)
    served.assert_none_of(secrets)
    if protection.startswith("paillier"):
        # The search does see numbers of this kind where they are: the public one is in memory.
        public = modulus_of(KeyEpoch.load(workspace.epoch)).to_bytes(256, "little")
        assert public[8:40] in served.memory


@pytest.mark.slow
def test_scenario_01_under_masks_the_coordinator_has_no_secret_of_a_client(tmp_path, monkeypatch):
    """The clients run beside this test, so that it sees what they forget after each step."""
    workspace = prepare(tmp_path, plan_of("masks", total=1), data(), n_clients=3)
    secrets = secrets_of(workspace)
    states: list[ParticipantState] = []
    to_bytes = Participant.to_bytes

    def watched(participant):
        raw = to_bytes(participant)
        states.append(ParticipantState.from_bytes(raw))
        return raw

    monkeypatch.setattr(Participant, "to_bytes", watched)
    served = Served(tmp_path, workspace)
    served.beside(Bench(workspace=workspace))
    keys = {key for s in states for key in (s.keys.mask, s.keys.share) if key}
    shares = {held[1] for state in states for held in state.held.values()}
    # Three rounds (count, train, evaluate) of three clients: two keys each; of each key three
    # shares, one of which its owner keeps.
    assert (len(keys), len(shares)) == (18, 27)
    secrets["keys of rounds"] = [form for key in keys for form in (key, key.hex().encode())]
    secrets["shares of mask keys"] = [share[-32:] for share in shares]
    served.assert_none_of(secrets)
    # What clients advertised of these keys is in the recording, so the search looks where it must.
    public = {half for state in states if state.keys.mask for half in state.keys.public_halves()}
    assert len(public) == 18 and all(half in served.stored for half in public)


@pytest.mark.parametrize(
    ("protection", "context_bytes"),
    [("bfv", 56), ("ckks", 56), ("paillier/packed-2048", 56 + 256)],
)
def test_scenario_01_what_the_coordinator_has_opens_nothing(tmp_path, protection, context_bytes):
    """Under paillier the context holds the public modulus, too."""
    workspace = prepare(tmp_path, plan_of(protection), data(), n_clients=3)
    epoch = KeyEpoch.load(workspace.epoch)
    context = epoch.server_context
    assert len(context) == context_bytes
    protecting = protection_of(workspace.plan, N_ITEMS)
    protecting.envelope(context)
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
        protecting.envelope(context + b"\0")
    served = json.loads(epoch.to_json())
    assert "group_key" not in json.dumps(served)
