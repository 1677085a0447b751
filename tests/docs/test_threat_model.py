"""The threat model's table of what a client agrees to, against the code that compares it."""

import re

from fedrec.plan.agreement import always_compared
from fedrec.settings.explain import all_settings

from .pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "threat-model-details.md"
SHORT = ROOT / "docs" / "explanation" / "threat-model.md"
MOST_WORDS = 1500


def test_the_page_is_read_in_ten_minutes():
    assert len(SHORT.read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_every_value_that_is_always_compared_is_in_the_table():
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("### What a client agrees to")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([a-z_.]+)`", " ".join(first_cells)))
    assert named == set(always_compared())


def test_the_table_says_the_defaults():
    text = PAGE.read_text(encoding="utf-8")
    for key in ("protection.corrupt_share", "protection.dropout_share", "privacy.rounds_per_user"):
        default = all_settings()[key].default
        assert f"| `{key}` | {default} | " in text or f"| `{key}` | {default}: " in text
