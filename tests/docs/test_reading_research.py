"""The pages about data, runs and figures are typed, and work."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.reading import read
from docs.scripts import RESEARCH

from fedrec.data import FetchedDataset

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("page", RESEARCH)
def test_every_line_works(page: str, tmp_path: Path, ml_100k: FetchedDataset) -> None:
    read(page, tmp_path)
