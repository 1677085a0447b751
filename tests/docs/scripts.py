"""How each page is typed: what a reader has before, waits for, and where a test takes less."""

from __future__ import annotations

import re

from docs.pages import ROOT, blocks
from docs.reader import Reader, Script
from docs.scripts_members import BACK_UP, KEYS, MEMBERS
from docs.scripts_operate import OPERATE
from docs.scripts_reference import REFERENCE
from docs.scripts_research import BRING_YOUR_OWN_DATA, RESEARCH
from world.clock import poll

MOVIES = "fedrec data fetch ml-100k --into data"


def own_data(reader: Reader) -> None:
    """A file of one's own, and settings that take two rounds where they would take ten."""
    reader.command(f"{MOVIES} && mv data/interactions.csv .")
    reader.command("export FEDREC_ROUNDS__TOTAL=2")


def two_rounds(reader: Reader) -> None:
    """Two rounds of training where the tutorial has twenty, after it priced them."""
    reader.command("sed -i 's|^total = 20|total = 2|' federation.toml")
    assert "\ntotal = 2\n" in (reader.cwd / "federation.toml").read_text()


def run_is_over(reader: Reader) -> None:
    """Clients tell what the page shows and end by themselves, the coordinator by Ctrl-C."""
    first = next(text for text in reader.running if "client-1" in text)
    poll(lambda: not reader.running[first].runs, "client 1 ends")
    shown = {words(line) for line in reader.running[first].output.splitlines()}
    promised = blocks((ROOT / reader.page).read_text(encoding="utf-8"), "text")
    lines = [line for body in promised for line in body.splitlines()]
    events = [line for line in lines if re.match(r"(..:..:..  )?(waiting|joined|round|all)", line)]
    assert len(events) == 12
    # The page shortens lines.
    has = {line: any(one[: len(words(line))] == words(line) for one in shown) for line in events}
    assert all(has.values()), (has, shown)
    reader.awaits_end("fedrec client run")
    reader.ends("fedrec coordinator run")


def words(line: str) -> tuple[str, ...]:
    """Return a line's words, without numbers and names of runs."""
    return tuple(word for word in line.split() if not re.search(r"\d", word))


FIRST_FEDERATION = Script(
    instead={"movies-<time>": "movies-*"},
    before={
        "fedrec provision": two_rounds,
        "fedrec recommend kits": run_is_over,
    },
    shows={
        "fedrec check federation.toml": r".",
        "fedrec simulate": r"method|popularity|untrained",
    },
)

BEGIN = {
    "README.md": Script(given=own_data),
    "docs/how-to/back-up-the-authority.md": BACK_UP,
    "docs/how-to/bring-your-own-data.md": BRING_YOUR_OWN_DATA,
    "docs/how-to/keys-and-roster.md": KEYS,
    "docs/tutorial/first-federation.md": FIRST_FEDERATION,
}

SCRIPTS = {**BEGIN, **OPERATE, **MEMBERS, **RESEARCH, **REFERENCE}
"""By page."""
