"""The pages that people begin with are typed, and work."""

import pytest
from docs.reading import read
from docs.scripts import BEGIN
from world.plans import params

OTHERS = [page for page in BEGIN if page != "README.md"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", params("README.md", long=OTHERS))
def test_every_line_works(page, tmp_path, ml_100k):
    read(page, tmp_path)
