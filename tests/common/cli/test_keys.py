"""`fedrec keys` from the clients' first start to an epoch that they can open."""

from __future__ import annotations

import stat
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.x509 import DNSName, IPAddress, SubjectAlternativeName, load_pem_x509_certificate

from fedrec.config.loading import load_settings
from fedrec.identity.authority import Authority
from fedrec.identity.authority_key import read_authority_key, read_issuer
from fedrec.identity.certificates import Credentials, certificate_sha256, key_of
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import open_epoch
from fedrec.identity.identity import Identity
from fedrec.training.layout import protection_of

from .conftest import Fedrec

pytestmark = pytest.mark.slow


@pytest.fixture
def members(fedrec: Fedrec, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        assert fedrec("keys", "identity", folder, "--label", folder.name).code == 0
    return folders


@pytest.fixture(params=["bfv", "ckks", "paillier", "masks", "none"])
def settings_file(fedrec: Fedrec, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "run.toml"
    assert fedrec("init", path, "--clients", 3, "--protection", request.param).code == 0
    return path


def new_command(settings: Path, members: list[Path], keys: Path) -> list[object]:
    options: list[object] = []
    for folder in members:
        options += ["--client", folder / "identity.pub.json"]
    return ["keys", "new", settings, *options, "--into", keys, "--items", 20]


def test_every_member_can_open_the_epoch(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    text = settings_file.read_text()
    settings_file.write_text(text.replace('key_holder = "authority"', 'key_holder = "members"'))
    found = fedrec(*new_command(settings_file, members, keys), "--json").json
    assert (found["epoch"], found["authority_is_new"], len(found["members"])) == (1, True, 3)
    assert stat.S_IMODE((keys / "authority" / "authority.key").stat().st_mode) == 0o600
    epoch = KeyEpoch.load(keys / "epoch.json")
    protection = protection_of(load_settings(settings_file, environ={}).plan, 20)
    protection.check_context(epoch.server_context)
    assert epoch.roster.protection_fingerprint == protection.chosen.fingerprint()
    for folder in members:
        identity = Identity.load(folder)
        _, secrets = open_epoch(
            roster_json=epoch.roster.to_json(),
            server_context=epoch.server_context,
            wrapped=epoch.secrets_for(identity.client_id),
            identity=identity,
            pinned_authority_key=read_authority_key(keys / "authority.pub.json"),
        )
        protection.member(epoch.server_context, secrets.protection_secret).close()
        secrets.destroy()


@pytest.mark.parametrize("settings_file", ["bfv", "paillier"], indirect=True)
def test_an_authority_that_opens_sums_keeps_the_secret_key(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    told = fedrec(*new_command(settings_file, members, keys)).out
    assert "no round goes on without it" in told
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
def test_the_next_epoch_is_of_the_same_authority(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    command = new_command(settings_file, members, tmp_path / "keys")
    first = fedrec(*command, "--json").json
    second = fedrec(*command, "--json").json
    assert (second["epoch"], second["authority_is_new"]) == (2, False)
    assert second["authority"] == first["authority"]
    assert fedrec(*command, "--epoch", 2).code == 5
    assert fedrec(*command, "--epoch", 9, "--json").json["epoch"] == 9


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_a_lost_authority_is_not_replaced_in_silence(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    command = new_command(settings_file, members, tmp_path / "keys")
    assert fedrec(*command).code == 0
    (tmp_path / "keys" / "authority" / "authority.key").unlink()
    outcome = fedrec(*command)
    assert outcome.code == 5
    assert "Restore the folder from a copy" in outcome.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_too_few_or_foreign_members_are_refused(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    few = fedrec(*new_command(settings_file, members[:1], keys))
    assert few.code == 5
    assert "no round could be published" in few.err
    twice = [members[0], members[0], members[1]]
    assert fedrec(*new_command(settings_file, twice, keys)).code == 5
    assert not keys.exists()
    assert fedrec(*new_command(settings_file, members, keys)).code == 0
    renamed = [*new_command(settings_file, members, keys)]
    settings_file.write_text(settings_file.read_text().replace('name = "', 'name = "x-', 1))
    assert "belongs to the federation" in fedrec(*renamed).err


@pytest.mark.parametrize("settings_file", ["bfv"], indirect=True)
def test_show_tells_no_secret(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    assert fedrec(*new_command(settings_file, members, keys)).code == 0
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
        for file in (keys / "authority" / "authority.key", members[0] / "identity.key")
        for part in file.read_text().split('"')
        if len(part) > 40
    ]
    assert secrets
    text = fedrec("keys", "show", tmp_path).out
    assert not any(part in shown.out or part in text for part in secrets)
    assert kinds["authority.key"]["authority"] == kinds["epoch.json"]["authority"]


def test_identity_is_made_once(fedrec: Fedrec, tmp_path: Path) -> None:
    first = fedrec("keys", "identity", tmp_path / "a", "--label", "one", "--json").json
    second = fedrec("keys", "identity", tmp_path / "a", "--json").json
    assert first == second
    assert first["label"] == "one"


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_coordinator_gets_a_new_certificate_for_other_names(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    certificate = ["keys", "certificate", "--host", "10.0.0.7", "--into", keys]
    assert fedrec(*certificate).code == 5, "nobody is an authority yet"
    assert fedrec(*new_command(settings_file, members, keys)).code == 0
    before = Credentials.load(keys / "coordinator.pem", "it")
    (made,) = fedrec(*certificate, "--json").json.values()
    assert made == str(keys / "coordinator.pem")
    after = Credentials.load(keys / "coordinator.pem", "it")
    assert after.issuer == before.issuer and after.private_key != before.private_key
    names = load_pem_x509_certificate(after.certificate).extensions
    found = names.get_extension_for_class(SubjectAlternativeName).value
    assert ip_address("10.0.0.7") in found.get_values_for_type(IPAddress)


def test_show_refuses_what_is_no_key_file(fedrec: Fedrec, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert fedrec("keys", "show", tmp_path / "x.json").code == 5
    assert fedrec("keys", "show", tmp_path / "none").code == 5
    assert fedrec("keys", "show", tmp_path).code == 5


@pytest.fixture
def keys(fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]) -> Path:
    """The folder of an authority with three members."""
    assert fedrec(*new_command(settings_file, members, tmp_path / "keys")).code == 0
    return tmp_path / "keys"


def listed(fedrec: Fedrec, keys: Path) -> dict[str, list[str]]:
    found = fedrec("keys", "roster", "list", "--into", keys, "--json").json
    states: dict[str, list[str]] = {}
    for client in found["clients"]:
        states.setdefault(client["state"], []).append(client["label"])
    return {state: sorted(labels) for state, labels in states.items()}


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_members_come_and_go_offline(fedrec: Fedrec, tmp_path: Path, keys: Path) -> None:
    joiner = Identity.load_or_create(tmp_path / "d", "d")
    into = ("--into", keys)
    unknown = fedrec("keys", "roster", "admit", joiner.client_id, *into)
    assert unknown.code == 5 and "nobody's" in unknown.err
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
def test_too_few_members_are_said_not_refused(fedrec: Fedrec, tmp_path: Path, keys: Path) -> None:
    a, b, c = (Identity.load(tmp_path / name).client_id for name in "abc")
    found = fedrec("keys", "roster", "remove", a, "--into", keys)
    assert found.code == 0 and "no round opens" in found.out
    assert fedrec("keys", "roster", "remove", b, "--into", keys).code == 0
    last = fedrec("keys", "roster", "remove", c, "--into", keys)
    assert last.code == 5 and "last member" in last.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_backup_and_restore_on_another_machine(fedrec: Fedrec, tmp_path: Path, keys: Path) -> None:
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


def test_without_an_authority_nothing_is_sent(fedrec: Fedrec, tmp_path: Path) -> None:
    found = fedrec("keys", "authority", "run", "127.0.0.1:1", "--into", tmp_path / "none")
    assert found.code == 5 and "fedrec keys new" in found.err


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_the_authority_looks_once(fedrec: Fedrec, keys: Path) -> None:
    found = fedrec("keys", "authority", "run", "127.0.0.1:1", "--into", keys, "--once", "--json")
    assert found.code == 3
    assert "coordinator lost" in found.out


@pytest.mark.parametrize("settings_file", ["none"], indirect=True)
def test_new_issues_what_every_party_shows_in_a_handshake(
    fedrec: Fedrec, tmp_path: Path, settings_file: Path, members: list[Path]
) -> None:
    keys = tmp_path / "keys"
    command = new_command(settings_file, members, keys)
    assert fedrec(*command, "--host", "rec.example").code == 0
    issuer, epoch = read_issuer(keys / "authority.pub.json"), KeyEpoch.load(keys / "epoch.json")
    assert epoch.roster.ca_sha256 == certificate_sha256(issuer)
    coordinator = Credentials.load(keys / "coordinator.pem", "coordinator.certificate")
    names = load_pem_x509_certificate(coordinator.certificate).extensions
    found = names.get_extension_for_class(SubjectAlternativeName).value
    assert found.get_values_for_type(DNSName) == ["rec.example", "localhost"]
    assert coordinator.issuer == issuer
    operator = Credentials.load(keys / "operator.pem", "--operator")
    assert (keys / "operator.crt").read_bytes() == operator.certificate
    for folder in members:
        certificate = (keys / "clients" / f"{folder.name}.crt").read_bytes()
        Identity.load(folder).credentials(certificate, issuer).check("client.certificate")
    before = [path.read_bytes() for path in sorted(keys.glob("*.pem"))]
    assert fedrec(*command).code == 0
    assert [path.read_bytes() for path in sorted(keys.glob("*.pem"))] == before
    assert stat.S_IMODE((keys / "coordinator.pem").stat().st_mode) == 0o600
    # The key of rosters issues nothing.
    authority = Authority.load(keys / "authority")
    assert authority.public_key not in key_of(issuer)
