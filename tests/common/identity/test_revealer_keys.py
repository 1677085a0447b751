"""The secret keys of epochs that an authority keeps to itself."""

import stat

import pytest

from fedrec.errors import KeysError
from fedrec.identity.document import destroy_secret
from fedrec.identity.epoch_secrets import RevealerKeyChanges
from fedrec.identity.identity import KEY_FILE

LONG = bytes(range(256)) * 1000


@pytest.fixture
def keys(tmp_path):
    return RevealerKeyChanges(tmp_path / "revealer")


def test_a_secret_is_read_back_by_its_epoch(keys):
    keys.keep(1, b"one")
    keys.keep(12, LONG)
    assert (keys.secret_of(1), keys.secret_of(12)) == (b"one", LONG)
    assert keys.epochs == (1, 12)
    for path in keys.folder.glob("epoch-*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_unseen_epoch_is_made_again(keys):
    keys.keep(3, b"killed before anybody heard of it")
    keys.keep(3, b"the one that was handed out")
    assert keys.secret_of(3) == b"the one that was handed out"


def test_a_secret_that_is_not_here(keys):
    with pytest.raises(KeysError) as raised:
        keys.secret_of(2)
    assert "fedrec keys rotate" in (raised.value.remedy or "")
    keys.keep(3, b"the coordinator has yet to get this epoch")
    with pytest.raises(KeysError, match="of epoch 3 instead") as raised:
        keys.secret_of(2)
    assert "delivers epoch 3" in (raised.value.remedy or "")
    assert "rotate" not in (raised.value.remedy or "")
    with pytest.raises(KeysError) as raised:
        keys.secret_of(4)
    assert "fedrec keys rotate" in (raised.value.remedy or "")


def test_a_secret_under_another_epochs_name(keys):
    keys.keep(1, b"one")
    (keys.folder / "epoch-00000001.secret").rename(keys.folder / "epoch-00000002.secret")
    with pytest.raises(KeysError, match="is of epoch 1, not 2"):
        keys.secret_of(2)


def test_a_secret_that_others_may_read(keys):
    keys.keep(1, b"one")
    (keys.folder / "epoch-00000001.secret").chmod(0o640)
    with pytest.raises(KeysError, match="mode 0640"):
        keys.secret_of(1)


def test_old_secrets_are_destroyed(keys):
    for epoch in (1, 2, 3):
        keys.keep(epoch, b"secret %d" % epoch)
    opened = (keys.folder / "epoch-00000001.secret").open("rb")
    keys.destroy_before(3)
    assert keys.epochs == (3,)
    with opened:
        assert not any(opened.read()), "it was deleted but not overwritten"
    keys.destroy_before(3)
    assert keys.secret_of(3) == b"secret 3"
    destroy_secret(keys.folder / "epoch-00000001.secret")


def test_the_identity_is_made_once(keys):
    with pytest.raises(KeysError, match="no revealer's keys"):
        keys.load()
    assert not (keys.folder / KEY_FILE).exists(), "looking makes nothing"
    made = keys.load_or_create()
    assert keys.load().client_id == made.client_id == keys.load_or_create().client_id
