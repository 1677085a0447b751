"""The pages of those who run a federation are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import OPERATE

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", OPERATE)
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
