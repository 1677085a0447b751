"""A mistyped path makes no client: no keys, no application, not even a folder."""

import os

import pytest
from world.fake_federation import World

from fedrec.cli.main import main
from fedrec.follower.patient_link import Stopped
from fedrec.identity.certificates import CERTIFICATE_FILE, Issuer, check_certificate
from fedrec.identity.document import write_secret
from fedrec.identity.identity import KEY_FILE, Identity

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A federation of one client, where whoever applies is told to stop."""
    made = World(tmp_path)

    def stop(called):
        if called == "apply" or made.link.calls.count("federation") == 2:
            raise Stopped

    made.link.before = stop
    made.write_settings()
    for name in ("open_link", "invited_link"):
        monkeypatch.setattr(f"fedrec_client.app.{name}", lambda settings: made.link)
    # Paths of flags are those of the terminal.
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def call(world, capsys):
    def run(*words):
        capsys.readouterr()
        verb, *options = words
        command = ["recommend"] if verb == "recommend" else ["client", verb]
        with pytest.raises(SystemExit) as left:
            main([*command, str(world.folder / "fedrec.toml"), *options])
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out + shown.err

    return run


def files(folder):
    """Return everything in a folder, folders among it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else b"/"
    return found


def missing(folder):
    return folder / "sate"


def empty(folder):
    (folder / "sate").mkdir()
    return folder / "sate"


def of_something_else(folder):
    (folder / "sate").mkdir()
    for name in ("coordinator.db", "spool"):
        (folder / "sate" / name).write_bytes(b"")
    return folder / "sate"


def a_file(folder):
    (folder / "sate").write_text("not a folder")
    return folder / "sate"


def of_who_opens_sums(folder):
    Identity.create("revealer").save(folder / "sate")
    (folder / "sate" / "epoch-00000001.secret").write_bytes(b"")
    return folder / "sate"


SAID = {
    missing: "which does not exist",
    empty: "an empty folder",
    of_something_else: "a folder with coordinator.db, spool in it",
    a_file: "a file",
    of_who_opens_sums: "No client has its state there",
}


@pytest.mark.parametrize("place", SAID, ids=lambda place: place.__name__)
def test_a_mistyped_state(world, call, place):
    state = place(world.folder)
    before = files(world.folder)
    code, text = call("run", "--state", "sate")
    assert code == 2
    # A terminal breaks lines where it likes.
    flat = " ".join(text.split())
    assert SAID[place] in flat
    assert str(state) in "".join(text.split())
    assert "fedrec client identity" in flat
    assert files(world.folder) == before
    assert world.link.calls == []


@pytest.mark.parametrize("place", [missing, empty], ids=["missing", "empty"])
def test_keys_are_made_where_that_is_asked_for(world, call, place):
    state = place(world.folder)
    assert call("identity", "--state", "sate")[0] == 0
    made = (state / KEY_FILE).read_bytes()
    assert call("identity", "--state", "sate")[0] == 0
    assert (state / KEY_FILE).read_bytes() == made
    # It is in no roster; whoever made its keys by hand carries them to the authority by hand.
    text = call("run", "--state", "sate")[1]
    assert world.link.calls[:2] == ["federation", "catalogue"] and "apply" not in world.link.calls
    assert "waiting_to_join" in text


@pytest.mark.parametrize("place", [missing, empty], ids=["missing", "empty"])
def test_who_is_invited_makes_keys_at_the_first_start_and_no_other(world, call, place):
    state, invitation = place(world.folder), world.folder / "a.pem"
    issuer = world.authority.issuer
    write_secret(invitation, issuer.credentials("invitation", "a").to_pem())
    assert call("run", "--state", "sate", "--set", "client.invitation=a.pem")[0] == 130
    assert world.link.calls[0] == "apply"
    made = Identity.load(state)
    # It is stopped, and goes on with the same keys until it is admitted.
    world.link.before = lambda called: None
    members = [member.public for member in (*world.puppets, made)]
    world.epoch = world.make_epoch(members=members)
    call("run", "--state", "sate", "--set", "client.invitation=a.pem", "--data", "none.csv")
    assert Identity.load(state).client_id == made.client_id
    assert not (state / CERTIFICATE_FILE).exists(), "without data nobody applies"

    def stop(called):
        if called == "federation":
            raise Stopped

    world.link.before = stop
    assert call("run", "--state", "sate", "--set", "client.invitation=a.pem")[0] == 130
    certificate = (state / CERTIFICATE_FILE).read_bytes()
    check_certificate(certificate, made.public.tls_key, issuer.certificate, "it")
    # It is used, and a mistyped folder is one again.
    assert not invitation.exists()
    world.link.calls.clear()
    code, text = call("run", "--state", "tate", "--set", "client.invitation=a.pem")
    assert code == 2 and "which does not exist" in " ".join(text.split())
    assert world.link.calls == [] and not (world.folder / "tate").exists()


def test_an_invitation_that_does_not_fit_is_named(world, call):
    foreign = Issuer.create().credentials("invitation", "a")
    write_secret(world.folder / "a.pem", foreign.to_pem())
    (world.folder / "odd.pem").write_text("odd")
    (world.folder / "odd.pem").chmod(0o600)
    operator = world.authority.issuer.credentials("operator", "operator")
    write_secret(world.folder / "operator.pem", operator.to_pem())
    for name in ("a.pem", "odd.pem", "operator.pem"):
        code, text = call("run", "--set", f"client.invitation={name}")
        assert code == 5 and "client.invitation" in text
    assert "apply" not in world.link.calls


@pytest.mark.parametrize("place", [of_something_else, a_file], ids=["folder", "file"])
def test_no_keys_are_made_beside_something_else(world, call, place):
    place(world.folder)
    before = files(world.folder)
    code, text = call("identity", "--state", "sate")
    assert code == 2 and "not a client's state folder" in " ".join(text.split())
    assert files(world.folder) == before


def test_a_start_that_was_interrupted_is_no_other_folder(world, call):
    """The lock and half a file are there, the keys are not."""
    (world.folder / "sate").mkdir()
    for name in ("lock", "lost+found", ".identity.key.new"):
        (world.folder / "sate" / name).write_bytes(b"")
    assert call("identity", "--state", "sate")[0] == 0


@pytest.mark.parametrize("content", [None, "", "this is,no table\n1,2\n"])
def test_a_mistyped_data_file(world, call, content):
    """A new client does not apply for users whom it does not find."""
    if content is not None:
        (world.folder / "dat.csv").write_text(content)
    code, text = call("run", "--data", "dat.csv")
    assert code == 2 and "dat.csv" in "".join(text.split())
    assert world.link.calls == ["close"]
    kept = {KEY_FILE, "identity.pub.json", "lock"}
    assert set(os.listdir(world.state)) == kept, "nothing but its own lock is new"


@pytest.mark.parametrize("verb", ["recommend", "measured", "export-model"])
def test_looking_into_a_mistyped_folder_makes_none(world, call, verb):
    options = {"recommend": ["--user", "alice"], "export-model": ["--to", "out"]}
    before = files(world.folder)
    call(verb, "--state", "sate", *options.get(verb, []))
    assert files(world.folder) == before


def test_a_folder_of_another_client(world, call):
    """Its keys say whose it is, even before it was in any run."""
    Identity.create("hospital-b").save(world.folder / "sate")
    before = files(world.folder)
    code, text = call("run", "--state", "sate", "--set", "client.label=hospital-a")
    assert code == 2
    flat = " ".join(text.split())
    assert "'hospital-b'" in flat and "client.label is 'hospital-a'" in flat
    assert "client.state" in flat and "--state" in flat
    assert str(world.folder / "sate") in "".join(text.split())
    assert files(world.folder) == before
    assert world.link.calls == []


@pytest.mark.parametrize("mistyped", ["--state", "--data"])
def test_what_another_client_took_part_with(world, call, mistyped):
    """A folder that is in a run is tied to its users, and contributes for no others."""
    assert call("run")[0] == 0
    world.write_data(("carol", "dave"))
    (world.folder / "data.csv").rename(world.folder / "other.csv")
    state = world.state
    if mistyped == "--state":
        state = world.folder / "sate"
        world.state.rename(state)
    kept, world.link.calls[:] = (state / KEY_FILE).read_bytes(), []
    code, text = call("run", "--state", state.name, "--data", "other.csv")
    flat = " ".join(text.split())
    assert code != 0 and "users changed" in flat
    assert "--state" in flat and "--data" in flat
    assert (state / KEY_FILE).read_bytes() == kept
    assert not {"apply", "submit_update"} & set(world.link.calls)


def test_a_new_run_is_not_applied_for_without_data(world, call):
    assert call("run")[0] == 0
    world.link.calls.clear()
    code, text = call("run", "--new-run", "--data", "dat.csv")
    assert code == 2 and "dat.csv" in "".join(text.split())
    assert world.link.calls == ["close"]


def test_a_client_says_where_it_works(world, call):
    code, text = call("run")
    assert code == 0
    flat = "".join(text.split())
    assert f"clientid{world.identity.client_id[:16]}" in flat
    assert f"state{world.state}," in flat
    assert f"data{world.folder / 'data.csv'}" in flat
    seen = [text.index(name) for name in ("starting", "preparing", "prepared", "joined")]
    assert seen == sorted(seen)
