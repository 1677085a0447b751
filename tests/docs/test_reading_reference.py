"""The reference's examples of commands are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import REFERENCE

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", REFERENCE)
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
