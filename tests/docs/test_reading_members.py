"""The pages about members, keys and traffic are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import MEMBERS

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", MEMBERS)
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
