"""The page on watching names every key of `fedrec status --json`."""

import re
from dataclasses import fields

from fedrec.wire.admin_link import CurrentRound, Quality, RunStatus

from .pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "watch-a-federation.md"


def test_the_table_of_keys_is_that_of_a_status():
    table = PAGE.read_text(encoding="utf-8").partition("| key | content |")[2]
    rows = [line.split("|")[1:3] for line in table.partition("\n\n")[0].splitlines()[2:]]
    within = {"current": CurrentRound, "quality": Quality}
    named = {key: cells[1] for cells in rows for key in re.findall(r"`(\w+)`", cells[0])}
    assert set(named) == {field.name for field in fields(RunStatus)}
    for key, kind in within.items():
        assert set(re.findall(r"`(\w+)`", named[key])) == {field.name for field in fields(kind)}
