"""Commands are called in the test's own process."""

from pathlib import Path

import pytest
from command import Fedrec, Outcome, fedrec, interactions_file

__all__ = ["Fedrec", "Outcome", "ease_file", "fedrec", "interactions_file", "settings_file"]


@pytest.fixture
def settings_file(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> Path:
    """Settings of three clients that share a small file of interactions."""
    path = tmp_path / "run.toml"
    start = ("init", path, "--algorithm", "fedmf", "--data", interactions_file, "--clients", 3)
    assert fedrec(*start).code == 0
    return path


@pytest.fixture
def ease_file(fedrec: Fedrec, tmp_path: Path) -> Path:
    """Settings of five clients that count pairs, without data."""
    path = tmp_path / "ease.toml"
    assert fedrec("init", path, "--algorithm", "ease", "--clients", 5).code == 0
    return path
