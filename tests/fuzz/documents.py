"""Parsers of files and documents: identities, rosters, plans, states, models, backups."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.target import Target, from_file
from world.bench import N_ITEMS, Bench, invite, plan_of

from fedrec.data.catalogue import Catalogue
from fedrec.data.readers import read_interactions
from fedrec.follower.database import STATE_FILE, StateDatabase, image_of
from fedrec.follower.stored_state import RunPin
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials, Issuer, check_certificate, key_of
from fedrec.identity.document import encode_bytes, write_document
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity, read_authority_key, read_issuer
from fedrec.identity.roster import Roster
from fedrec.identity.sealing import seal, unseal, unwrap, wrap
from fedrec.ids import ItemId, UserId
from fedrec.model.state import PrivateState, SharedState
from fedrec.plan.agreement import plan_from_json, plan_to_json
from fedrec.privacy import Spent
from fedrec.settings.validation import load_settings
from fedrec.state_folder import Highwater, record
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources
from fedrec_authority.folder import backup
from fedrec_client.state.client_state import ClientState
from fedrec_client.state.counted_data import CountedData
from fedrec_client.state.privacy_ledger import PrivacyLedger, UserAccount

GROUP_KEY, PURPOSE = b"g" * 32, "aggregate"
PASSPHRASE = "four random words here"
SALT, NONCE = b"s" * backup.SALT_BYTES, b"n" * backup.NONCE_BYTES


@cache
def bench() -> Bench:
    """Return a federation's folders, which are kept as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="fedrec-fuzz-")
    _FOLDERS.append(folder)
    return Bench.make(Path(folder.name), plan_of("bfv", key_holder="authority"))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str) -> bytes:
    return (bench().workspace.folder / name).read_bytes()


def _document(name: str, read: Callable[[bytes], object]) -> Callable[[], Target]:
    return lambda: Target(read=read, seeds=(_file(name),))


def _path(name: str, read: Callable[[Path], object]) -> Callable[[], Target]:
    return lambda: Target(read=from_file(Path(name).name, read), seeds=(_file(name),))


def _application() -> Target:
    owner = Identity.load(bench().state(0)).public
    made = SignedApplication.make(owner, Credentials.load(Path(invite(bench())), "the invitation"))
    return Target(read=SignedApplication.from_json, seeds=(made.to_json(),))


def _certified(data: bytes) -> object:
    """Read a certificate as a client reads the one that an applicant's answer brings."""
    identity = Identity.load(bench().state(0)).public
    issuer = read_issuer(bench().workspace.folder / "keys" / "authority.pub.json")
    check_certificate(data, identity.tls_key, issuer, "the certificate")
    return key_of(data, "the certificate")


def _issuer() -> Target:
    pem = Issuer.create().to_pem()
    return Target(read=lambda data: Issuer.from_pem(data, "the issuer"), seeds=(pem,))


def _sealed() -> Target:
    made = seal(GROUP_KEY, PURPOSE, b"round 3", b"an aggregate")
    return Target(read=lambda data: unseal(GROUP_KEY, PURPOSE, b"round 3", data), seeds=(made,))


def _wrapped() -> Target:
    owner = Identity.create()
    made = wrap(owner.public.exchange_key, b"context", b"a group key")
    return Target(read=lambda data: unwrap(owner, b"context", data), seeds=(made,))


def _shared() -> Target:
    """Return what is inside a sealed snapshot: the shared model."""
    learner = Learner(plan_of("none"), 60, device="cpu", resources=Resources(threads=1))
    return Target(read=SharedState.from_bytes, seeds=(learner.server.initial_shared().to_bytes(),))


def _private() -> Target:
    state = PrivateState.of({"own": np.arange(6, dtype=np.float32).reshape(3, 2)})
    return Target(read=PrivateState.from_bytes, seeds=(state.to_bytes(),))


def _stored() -> Target:
    pin = RunPin.model_construct()
    fields: dict[str, Any] = {
        name: "a" * 64 if info.annotation is str else info.default
        for name, info in type(pin).model_fields.items()
    }
    state = ClientState(pin=RunPin.model_validate(fields), epoch=1)

    def read(data: bytes) -> ClientState:
        records = (line.partition(b"\t") for line in data.splitlines())
        fields = {name.decode(errors="replace"): value for name, _, value in records}
        return ClientState.from_records(fields, STATE_FILE)

    lines = [name.encode() + b"\t" + value for name, value in state.records().items()]
    return Target(read=read, seeds=(b"\n".join(lines),))


def _database() -> Target:
    def read(path: Path) -> object:
        return StateDatabase(path.parent).read("run")

    image = image_of({"run": {"epoch": b"1"}, "client": {"roster": b"{}"}})
    return Target(read=from_file(STATE_FILE, read), seeds=(image,))


def _mark() -> Target:
    def read(path: Path) -> None:
        mark = Highwater(path.parent, "coordinator.state", "")
        try:
            mark.check(5)
        finally:
            mark.close()

    return Target(read=from_file("highwater", read), seeds=(record(5),))


def _backed_up(content: bytes) -> bytes:
    """Return a backup under a passphrase, as cheap as one may be."""
    key = backup._key(PASSPHRASE, SALT, 2, 1)
    bound = backup._bound(2, 1, SALT)
    fields = {
        "cost": 2,
        "block_size": 1,
        "salt": encode_bytes(SALT),
        "nonce": encode_bytes(NONCE),
        "sealed": encode_bytes(backup.AESGCM(key).encrypt(NONCE, content, bound)),
    }
    return write_document(backup.KIND, fields)


def _backup() -> Target:
    names = [*backup.SECRETS, backup.AUTHORITY_PUBLIC_FILE]
    files = [{"name": name, "content": encode_bytes(_file(f"keys/{name}"))} for name in names]
    content = write_document(backup._CONTENT, {"files": files})
    opened = from_file("backup.json", lambda path: backup._opened(path, PASSPHRASE))
    inside = b"inside "

    def read(data: bytes) -> object:
        if data.startswith(inside):
            return opened(_backed_up(data.removeprefix(inside)))
        return opened(data)

    return Target(read=read, seeds=(_backed_up(content), inside + content))


def _plan() -> Target:
    plans = [plan_of("bfv"), plan_of("none", algorithm="fedals"), plan_of("masks")]
    return Target(read=plan_from_json, seeds=tuple(plan_to_json(plan) for plan in plans))


def _spent() -> Target:
    account = UserAccount(rounds=3, spent=Spent(gaussian=0.5, laplace=1.0))
    ledger = PrivacyLedger(run="run", accounts={UserId("u"): account})
    return Target(read=PrivacyLedger.from_bytes, seeds=(ledger.to_bytes(),))


def _counted() -> Target:
    users = bench().users()[0]
    items = [ItemId(f"item {number}") for number in range(N_ITEMS)]
    counted = CountedData.of(users, items, run="run", whole=True)
    return Target(read=CountedData.from_bytes, seeds=(counted.to_bytes(),))


DOCUMENTS: dict[str, Callable[[], Target]] = {
    "roster": _document("keys/authority/rosters/00000001.json", Roster.from_json),
    "key epoch": _document("keys/epoch.json", KeyEpoch.from_json),
    "public identity": _document("clients/1/state/identity.pub.json", PublicIdentity.from_json),
    "application": _application,
    "certificate": _document("clients/1/state/client.crt", _certified),
    "credentials": _path("keys/operator.pem", lambda path: Credentials.load(path, "the file")),
    "issuer": _issuer,
    "identity": _path("clients/1/state/identity.key", lambda path: Identity.load(path.parent)),
    "authority key": _path("keys/authority.pub.json", read_authority_key),
    "sealed sum": _sealed,
    "wrapped key": _wrapped,
    "shared model": _shared,
    "private model": _private,
    "client state": _stored,
    "client database": _database,
    "spent privacy": _spent,
    "counted data": _counted,
    "high-water mark": _mark,
    "backup": _backup,
    "plan": _plan,
    "settings": _path("coordinator.toml", load_settings),
    "catalogue": _path("catalogue.csv", Catalogue.load),
    "interactions": _path("clients/1/interactions.csv", read_interactions),
}
"""By name, what makes the target of each document; folders are made when they are needed."""
