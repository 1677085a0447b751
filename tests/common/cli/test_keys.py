"""`fedrec keys` beside an authority's process: epochs, members, copies."""

from __future__ import annotations

import json
import stat
from ipaddress import ip_address
from pathlib import Path

import pytest
import structlog
from cryptography.x509 import IPAddress, SubjectAlternativeName, load_pem_x509_certificate
from world.federation import change, keep, rotate

from fedrec.identity.authority import Authority
from fedrec.identity.certificates import Credentials, certificate_sha256, key_of
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import read_authority_key, read_issuer
from fedrec.plan.layout import protection_of
from fedrec.protection.protection import OneStepProtection
from fedrec.settings.validation import load_settings
from fedrec_authority.folder.authority_folder import AuthorityFolder

from .conftest import Fedrec

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bfv", "ckks", "paillier", "masks", "none"])
def settings_file(fedrec, tmp_path, request):
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--clients", 3, "--protection", request.param).code == 0
    return path


@pytest.fixture
def keys(tmp_path, settings_file):
    """The folder of an authority with three members."""
    return keys_of(tmp_path, settings_file)


def keys_of(tmp_path: Path, settings_file: Path) -> Path:
    """Make the folder of an authority with three members, whose folders are a, b and c."""
    members = [Identity.load_or_create(tmp_path / name, name).public for name in "abc"]
    folder = AuthorityFolder(tmp_path / "keys")
    plan = load_settings(settings_file, environ={}).plan
    keep(folder, folder.begin(plan, 20).of_exactly(members, 100))
    rotate(folder)
    change(folder, lambda keys: keys.serve_at([]))
    change(folder, lambda keys: keys.make_operator())
    return folder.path


def test_every_member_can_open_the_epoch(tmp_path, settings_file):
    text = settings_file.read_text()
    settings_file.write_text(text.replace('key_holder = "authority"', 'key_holder = "members"'))
    keys = keys_of(tmp_path, settings_file)
    assert stat.S_IMODE((keys / "authority" / "authority.key").stat().st_mode) == 0o600
    epoch = KeyEpoch.load(keys / "epoch.json")
    protection = protection_of(load_settings(settings_file, environ={}).plan, 20)
    protection.envelope(epoch.server_context)
    assert epoch.roster.protection_fingerprint == protection.chosen.fingerprint()
    for name in "abc":
        identity = Identity.load(tmp_path / name)
        _, secrets = open_epoch(
            roster_json=epoch.roster.to_json(),
            server_context=epoch.server_context,
            wrapped=epoch.secrets_for(identity.client_id),
            identity=identity,
            pinned_authority_key=read_authority_key(keys / "authority.pub.json"),
        )
        if isinstance(protection, OneStepProtection):
            protection.member(epoch.server_context, secrets.protection_secret).close()
        secrets.destroy()


@pytest.mark.parametrize("settings_file", ["bfv", "paillier"], indirect=True)
def test_an_authority_that_opens_sums_keeps_the_secret_key(fedrec, keys):
    secret = keys / "authority" / "revealer" / "epoch-00000001.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    found = fedrec("keys", "show", keys, "--json").json["files"]
    (epoch,) = (each for each in found if each["path"].endswith("epoch.json"))
    assert epoch["key_holder"] == "authority"
    (own,) = (each for each in found if "revealer's private keys" in each["what"])
    assert own["client_id"] == epoch["revealer"]
    assert fedrec("keys", "rotate", "--into", keys).code == 0
    (again,) = fedrec("keys", "show", keys / "epoch.json", "--json").json["files"]
    assert (again["epoch"], again["revealer"]) == (2, epoch["revealer"])
    assert (secret.parent / "epoch-00000002.secret").exists()
    (secret.parent / "client.crt").unlink()
    refused = fedrec("keys", "authority", "run", "127.0.0.1:1", "--into", keys)
    assert refused.code == 5 and "fedrec keys rotate" in refused.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_next_epoch_is_of_the_same_authority(fedrec, keys):
    first = KeyEpoch.load(keys / "epoch.json").roster
    rotate = ("keys", "rotate", "--into", keys)
    assert fedrec(*rotate, "--json").json["epoch"] == 2
    second = KeyEpoch.load(keys / "epoch.json").roster
    assert second.authority_key == first.authority_key
    assert fedrec(*rotate, "--epoch", 2).code == 5
    assert fedrec(*rotate, "--epoch", 9, "--json").json["epoch"] == 9


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_a_lost_authority_is_not_replaced_in_silence(fedrec, keys):
    (keys / "authority" / "authority.key").unlink()
    outcome = fedrec("keys", "rotate", "--into", keys)
    assert outcome.code == 5
    assert "fedrec keys restore" in outcome.err


@pytest.mark.parametrize("settings_file", ["bfv"], indirect=True)
def test_an_epoch_for_changed_settings(fedrec, settings_file, keys):
    rotate = ("keys", "rotate", "--into", keys, "--settings", settings_file)
    before, text = KeyEpoch.load(keys / "epoch.json").roster, settings_file.read_text()
    settings_file.write_text(text.replace('preset = "default"', 'preset = "wide"'))
    assert fedrec(*rotate, "--json").json["epoch"] == 2
    after = KeyEpoch.load(keys / "epoch.json").roster
    assert after.protection_fingerprint != before.protection_fingerprint
    assert after.partition == before.partition
    # Sums of the present cells were opened, so that no client may be summed otherwise.
    for old, new in (
        ("minimum_summands = 3", "minimum_summands = 4"),
        ('key_holder = "authority"', 'key_holder = "members"'),
    ):
        changed = text.replace(old, new).replace("minimum_clients = 3", "minimum_clients = 4")
        settings_file.write_text(changed)
        refused = fedrec(*rotate)
        assert refused.code == 5 and "begin a new federation" in refused.err
    settings_file.write_text(text.replace('name = "', 'name = "x-', 1))
    assert "belongs to the federation" in fedrec(*rotate).err
    assert KeyEpoch.load(keys / "epoch.json").roster == after


@pytest.mark.parametrize("settings_file", ["bfv"], indirect=True)
def test_show_tells_no_secret(fedrec, tmp_path, keys):
    shown = fedrec("keys", "show", tmp_path, "--json")
    kinds = {Path(row["path"]).name: row for row in shown.json["files"]}
    assert set(kinds) == {
        "00000001.json",
        "membership.json",
        "authority.key",
        "authority.pub.json",
        "epoch.json",
        "identity.key",
        "identity.pub.json",
    }
    secrets = [
        part
        for file in (keys / "authority" / "authority.key", tmp_path / "a" / "identity.key")
        for part in file.read_text().split('"')
        if len(part) > 40
    ]
    assert secrets
    text = fedrec("keys", "show", tmp_path).out
    assert not any(part in shown.out or part in text for part in secrets)
    assert kinds["authority.key"]["authority"] == kinds["epoch.json"]["authority"]


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_coordinator_gets_a_new_certificate_for_other_names(fedrec, keys):
    before = Credentials.load(keys / "coordinator.pem", "it")
    seen = fedrec("keys", "rotate", "--host", "10.0.0.7", "--into", keys)
    assert seen.code == 0 and f"Copy {keys / 'coordinator.pem'} to the coordinator" in seen.out
    after = Credentials.load(keys / "coordinator.pem", "it")
    assert after.issuer == before.issuer and after.private_key != before.private_key
    names = load_pem_x509_certificate(after.certificate).extensions
    found = names.get_extension_for_class(SubjectAlternativeName).value
    assert ip_address("10.0.0.7") in found.get_values_for_type(IPAddress)


def test_show_refuses_what_is_no_key_file(fedrec, tmp_path):
    (tmp_path / "x.json").write_text("[]")
    assert fedrec("keys", "show", tmp_path / "x.json").code == 5
    assert fedrec("keys", "show", tmp_path / "none").code == 5
    assert fedrec("keys", "show", tmp_path).code == 5


def listed(fedrec: Fedrec, keys: Path) -> dict[str, list[str]]:
    found = fedrec("keys", "roster", "list", "--into", keys, "--json").json
    states: dict[str, list[str]] = {}
    for client in found["clients"]:
        states.setdefault(client["state"], []).append(client["label"])
    return {state: sorted(labels) for state, labels in states.items()}


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_members_come_and_go_offline(fedrec, tmp_path, keys):
    joiner = Identity.load_or_create(tmp_path / "d", "d")
    into = ("--into", keys)
    unknown = fedrec("keys", "roster", "admit", joiner.client_id, *into)
    assert unknown.code == 5 and "matches none of the" in unknown.err
    identity = tmp_path / "d" / "identity.pub.json"
    wrong = fedrec("keys", "roster", "admit", "0" * 16, "--identity", identity, *into)
    assert wrong.code == 5 and joiner.client_id in wrong.err
    short = joiner.client_id[:16]
    added = fedrec("keys", "roster", "admit", short, "--identity", identity, *into, "--json").json
    assert (added["epoch"], added["members"], added["rotated"]) == (2, 4, True)
    assert fedrec("keys", "roster", "admit", short, "--identity", identity, *into).code == 5
    assert KeyEpoch.load(keys / "epoch.json").roster.contains(joiner.client_id)

    removed = fedrec("keys", "roster", "remove", short, *into, "--no-rotate", "--json").json
    assert (removed["epoch"], removed["members"], removed["rotated"]) == (2, 3, False)
    assert KeyEpoch.load(keys / "epoch.json").roster.contains(joiner.client_id)
    assert listed(fedrec, keys) == {"member": ["a", "b", "c"], "former": ["d"]}
    assert "fedrec keys rotate" in fedrec("keys", "roster", "list", *into).out
    assert fedrec("keys", "rotate", *into, "--json").json["epoch"] == 3
    assert not KeyEpoch.load(keys / "epoch.json").roster.contains(joiner.client_id)
    again = fedrec("keys", "roster", "admit", short, *into, "--json").json
    assert (again["epoch"], again["members"]) == (4, 4)


@pytest.mark.parametrize("settings_file", ["bfv"], indirect=True)
def test_too_few_members_are_said_not_refused(fedrec, tmp_path, keys):
    a, b, c = (Identity.load(tmp_path / name).client_id for name in "abc")
    found = fedrec("keys", "roster", "remove", a, "--into", keys)
    assert found.code == 0 and "no round opens" in found.out
    assert fedrec("keys", "roster", "remove", b, "--into", keys).code == 0
    last = fedrec("keys", "roster", "remove", c, "--into", keys)
    assert last.code == 5 and "last member" in last.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_backup_and_restore_on_another_machine(fedrec, tmp_path, keys):
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse battery staple\n")
    copy, fresh = tmp_path / "copy", tmp_path / "fresh"
    option = ("--passphrase-file", secret)
    made = fedrec("keys", "backup", copy, "--into", keys, *option, "--json").json
    assert made == {"epoch": 1, "file": str(copy)}
    back = fedrec("keys", "restore", copy, "--into", fresh, *option, "--json").json
    assert back == {"epoch": 1, "folder": str(fresh), "members": 3}
    assert listed(fedrec, fresh) == listed(fedrec, keys)
    assert fedrec("keys", "rotate", "--into", fresh, "--epoch", 4, "--json").json["epoch"] == 4
    roster = KeyEpoch.load(fresh / "epoch.json").roster
    roster.verify(read_authority_key(keys / "authority.pub.json"))


def test_without_an_authority_nothing_is_sent(fedrec, tmp_path):
    found = fedrec("keys", "authority", "run", "127.0.0.1:1", "--into", tmp_path / "none")
    assert found.code == 5 and "fedrec provision" in found.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_authority_looks_once(fedrec, keys):
    found = fedrec("keys", "authority", "run", "127.0.0.1:1", "--into", keys, "--once", "--json")
    assert found.code == 3
    assert "coordinator lost" in found.out
    into = ("--into", keys, "--once", "--log-format", "json")
    logged = fedrec("keys", "authority", "run", "127.0.0.1:1", *into)
    structlog.reset_defaults()
    assert logged.out == ""
    line = json.loads(logged.err.splitlines()[0])
    assert (line["event"], line["level"]) == ("coordinator lost", "info")
    assert line.keys() <= {"event", "level", "timestamp", "detail"} and line["timestamp"]


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_authority_issues_what_every_party_shows(tmp_path, keys):
    issuer, epoch = read_issuer(keys / "authority.pub.json"), KeyEpoch.load(keys / "epoch.json")
    assert epoch.roster.ca_sha256 == certificate_sha256(issuer)
    coordinator = Credentials.load(keys / "coordinator.pem", "coordinator.certificate")
    assert coordinator.issuer == issuer
    operator = Credentials.load(keys / "operator.pem", "--operator")
    assert (keys / "operator.crt").read_bytes() == operator.certificate
    for name in "abc":
        certificate = (keys / "clients" / f"{name}.crt").read_bytes()
        Identity.load(tmp_path / name).credentials(certificate, issuer).check("it")
    before = [path.read_bytes() for path in sorted(keys.glob("*.pem"))]
    change(AuthorityFolder(keys), lambda keys: keys.make_operator())
    assert [path.read_bytes() for path in sorted(keys.glob("*.pem"))] == before
    assert stat.S_IMODE((keys / "coordinator.pem").stat().st_mode) == 0o600
    # The key of rosters issues nothing.
    authority = Authority.load(keys / "authority")
    assert authority.public_key not in key_of(issuer)
