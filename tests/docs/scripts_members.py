"""How the pages about a federation's members, keys and traffic are typed."""

from __future__ import annotations

import re

from docs.pages import ROOT, blocks
from docs.reader import Reader, Script
from docs.scripts_operate import AUTHORITY, HOSPITALS, authority, clients, kits
from world.clock import poll

COORDINATOR = "fedrec coordinator run kits/coordinator/coordinator.toml"
NEW = "fedrec client run kits/clients/hospital-e/client.toml"
PASSPHRASE = "some words that nobody guesses"
LONG = 5000
"""More rounds than a page takes to be typed."""


MOMENT = {"now", "arrived", "waits for", "closes in"}
"""Rows of `fedrec status` while a round is collected."""


def published(reader: Reader) -> None:
    """Wait until a client says that a round of training was published."""
    (client,) = [text for text in reader.running if "hospital-a/client.toml" in text]
    poll(
        lambda: re.search(r"round [2-9]  published", reader.running[client].output),
        "a round is published",
    )


def waits_for_authority(reader: Reader) -> None:
    """A federation that runs, but for its key authority."""
    kits(reader, LONG)
    reader.command(f"export FEDREC_ROUNDS__TOTAL={LONG}")
    reader.start(COORDINATOR)
    clients(reader, *HOSPITALS)


def applicant(reader: Reader) -> None:
    """Another hospital's kit is started, and its client tells the id that people compare."""
    published(reader)
    reader.command("fedrec provision --add hospital-e --confirm")
    reader.command("cp kits/clients/hospital-a/interactions.csv kits/clients/hospital-e")
    clients(reader, "hospital-e")
    reader.instead["9f86d081884c7d65"] = client_id(reader, "hospital-e")


def a_member(reader: Reader) -> None:
    """Take the id of a member, once its client takes part."""
    reader.instead["60303ae22b998861"] = client_id(reader, "hospital-e")
    poll(lambda: "  joined  " in reader.running[NEW].output, "the new hospital takes part")


def removed(reader: Reader) -> None:
    """The client of the member that was removed is refused."""
    reader.awaits_end(NEW, codes=(5,))


def client_id(reader: Reader, name: str) -> str:
    """Return the id that a client tells when it starts, as the authority has it."""
    (client,) = [text for text in reader.running if f"{name}/client.toml" in text]

    def id_in_log() -> str:
        found = re.search(r"client id ([0-9a-f]{16})", reader.running[client].output)
        return found[1] if found else ""

    found = poll(id_in_log, f"the client id of {name}")
    (process,) = [text for text in reader.running if text.startswith(AUTHORITY)]
    poll(lambda: found in reader.running[process].output, f"the authority hears of {name}")
    return found


ADD_AND_REMOVE_MEMBERS = Script(
    given=waits_for_authority,
    instead={"client.toml": "kits/clients/hospital-b/client.toml"},
    before={
        "fedrec provision --add": published,
        "fedrec keys roster admit": applicant,
        "fedrec keys roster remove": a_member,
        "fedrec keys roster cells": removed,
    },
)


def coordinators_kit(reader: Reader) -> None:
    """A coordinator's folder, with all others ready to start."""
    kits(reader)
    reader.command("cd kits/coordinator")


def run_is_over(reader: Reader) -> None:
    """The others come, and the run ends; the authority gives its rosters, clients their folders."""
    if not reader.running:
        return
    reader.command("cd ../..")
    authority(reader)
    clients(reader, *HOSPITALS)
    reader.command("cd kits/coordinator")
    reader.awaits_end("fedrec client run")
    reader.ends()
    reader.command("cp -r ../authority/authority/rosters . && mkdir clients")
    reader.command("cp -r ../clients/hospital-a clients/1 && cp -r ../clients/hospital-b clients/2")


AUDIT_A_RUN = Script(
    given=coordinators_kit,
    before={"fedrec audit coordinator.toml --recording recording": run_is_over},
)


def passphrase(reader: Reader) -> None:
    """Kits, and a passphrase in a file, since there is no terminal to ask."""
    kits(reader)
    (reader.cwd / "passphrase").write_text(PASSPHRASE + "\n", encoding="utf-8")


def lost(reader: Reader) -> None:
    """The authority's folder is gone, once."""
    if not (reader.cwd / "lost").exists():
        reader.command("mv kits/authority lost")


BACK_UP = Script(
    given=passphrase,
    instead={"2026-11.backup": "2026-11.backup --passphrase-file passphrase"},
    before={"fedrec keys restore authority-2026-11.backup": lost},
)


def coordinator_waits(reader: Reader) -> None:
    """Kits, and a coordinator that runs."""
    kits(reader)
    reader.start(COORDINATOR)


KEYS = Script(given=coordinator_waits)


def two_rounds(reader: Reader) -> None:
    """Two rounds where settings would say ten."""
    reader.command("export FEDREC_ROUNDS__TOTAL=2")


def products(reader: Reader) -> None:
    """Another folder, with a list of items."""
    reader.command("mkdir federation && cp data/catalogue.csv federation/items.csv")
    reader.command("cd federation")


PROVISION = Script(
    given=two_rounds,
    before={"fedrec provision --catalogue": products},
)


def on_a_page(reader: Reader) -> None:
    """A federation that runs, with its page."""
    kits(reader, LONG)
    reader.start(f"{COORDINATOR} --page {reader.in_place_of('127.0.0.1:7448')}")
    authority(reader)
    clients(reader, *HOSPITALS)
    published(reader)


def has_rows(reader: Reader, output: str) -> None:
    """The status has the page's rows, but for those that depend on the moment."""
    shown = blocks((ROOT / reader.page).read_text(encoding="utf-8"), "text")[0]
    promised = {line.split("  ")[0] for line in shown.splitlines()}
    assert len(promised) == 12
    assert promised - {line.split("  ")[0] for line in output.splitlines()} <= MOMENT, output


WATCH = Script(given=on_a_page, after={"fedrec status": has_rows})

MEMBERS = {
    "docs/how-to/add-and-remove-members.md": ADD_AND_REMOVE_MEMBERS,
    "docs/how-to/audit-a-run.md": AUDIT_A_RUN,
    "docs/how-to/provision-a-federation.md": PROVISION,
    "docs/how-to/watch-a-federation.md": WATCH,
}
