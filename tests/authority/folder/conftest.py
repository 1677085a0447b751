"""Four people, and the folder of an authority that took three of them in."""

import pytest
from authority.folder.fake_coordinator import PLAN
from world.federation import keep, rotate

from fedrec.identity.identity import Identity
from fedrec_authority.folder.authority_folder import AuthorityFolder


@pytest.fixture
def people():
    return [Identity.create(name) for name in "abcd"]


@pytest.fixture
def folder(tmp_path, people):
    made = AuthorityFolder(tmp_path / "keys")
    members = [person.public for person in people[:3]]
    keep(made, made.begin(PLAN, 12).of_exactly(members, 100))
    rotate(made)
    return made
