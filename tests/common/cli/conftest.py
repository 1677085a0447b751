"""Commands are called in the test's own process."""

import pytest
from command import Fedrec, Outcome, fedrec, interactions_file, settings_file, without_figures

__all__ = [
    "Fedrec", "Outcome", "ease_file", "fedrec", "interactions_file", "settings_file",
    "without_figures",
]  # fmt: skip


@pytest.fixture
def ease_file(fedrec, tmp_path):
    """Settings of five clients that count pairs, without data."""
    path = tmp_path / "ease.toml"
    assert fedrec("init", path, "--algorithm", "ease", "--clients", 5).code == 0
    return path
