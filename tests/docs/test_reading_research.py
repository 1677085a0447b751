"""The pages about data, runs and figures are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import RESEARCH

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", RESEARCH)
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
