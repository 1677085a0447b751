"""How each page is typed: what a reader has before, waits for, and where a test takes less."""

from __future__ import annotations

from docs.reader import Reader, Script
from docs.scripts_members import BACK_UP, KEYS, MEMBERS
from docs.scripts_operate import OPERATE
from docs.scripts_research import BRING_YOUR_OWN_DATA, RESEARCH

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
    """Clients end by themselves after the last round, the coordinator by Ctrl-C."""
    reader.awaits_end("fedrec client run")
    reader.ends("fedrec coordinator run")


FIRST_FEDERATION = Script(
    instead={"movies-<time>": "movies-*"},
    before={
        "fedrec provision": two_rounds,
        "fedrec client recommend": run_is_over,
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

SCRIPTS = {**BEGIN, **OPERATE, **MEMBERS, **RESEARCH}
"""By page."""
