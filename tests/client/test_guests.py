"""What a client signs of its own presence, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from client.fake_federation import World

from fedrec.config.schema import Settings
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import consents
from fedrec.identity.key_files import write_secret
from fedrec_client.app import ClientApp
from fedrec_client.stopping import Stopped


def settings_of(world: World, **client: str) -> Settings:
    """Return a client's settings in a world's folder."""
    given = {"state": "new", "authority_key": "authority.pub.json", **client}
    paths = {name: str(world.folder / given[name]) for name in ("state", "authority_key")}
    return Settings.model_validate(
        {
            "federation": {"name": "films", "minimum_item_users": 1},
            "algorithm": {"dim": 4},
            "data": {"path": str(world.folder / "data.csv")},
            "client": {**given, **paths, "device": "cpu"},
        }
    )


@pytest.mark.parametrize(("said", "is_guest"), [(None, False), ("wait", False), ("go_on", True)])
def test_the_word_of_the_settings_is_signed_in_the_application(
    tmp_path: Path, said: str | None, is_guest: bool
) -> None:
    world, path = World(tmp_path), tmp_path / "a.pem"
    write_secret(path, world.authority.issuer.credentials("invitation", "a").to_pem())

    def stop(called: str) -> None:
        raise Stopped

    world.link.before = stop
    settings = settings_of(
        world, invitation=str(path), **({} if said is None else {"when_away": said})
    )
    with pytest.raises(Stopped):
        ClientApp(settings, link=world.link).run()
    assert world.link.calls[0] == "apply"
    found = SignedApplication.from_json(world.link.sent[0])
    assert consents("films", found.identity.signing_key, found.consent) is is_guest
    assert bool(found.consent) is is_guest
