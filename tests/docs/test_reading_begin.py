"""The pages that people begin with are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import BEGIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", BEGIN)
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
