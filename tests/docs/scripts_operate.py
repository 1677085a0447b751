"""How the pages of those who run a federation are typed."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from docs.pages import ROOT, blocks
from docs.reader import Reader, Script
from world.clock import poll

from fedrec.data import read_interactions

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
AUTHORITY = "fedrec keys authority run"


def kits(reader: Reader, rounds: int = 2) -> None:
    """Kits of three hospitals, each with its own users of MovieLens 100K; 196 is hospital-a's."""
    reader.command("fedrec data fetch ml-100k --into data")
    reader.command("fedrec data split data/interactions.csv --clients 3 --into dealt")
    names = ",".join(HOSPITALS)
    address = reader.in_place_of("127.0.0.1:7447")
    reader.command(
        f"FEDREC_ROUNDS__TOTAL={rounds} fedrec provision --catalogue data/catalogue.csv"
        f" --clients {names} --address {address}"
    )
    dealt = sorted(reader.cwd.glob("dealt/*/interactions.csv"), key=lambda path: not has_196(path))
    for name, path in zip(HOSPITALS, dealt, strict=True):
        shutil.copy(path, reader.cwd / "kits" / "clients" / name / "interactions.csv")


def has_196(path: Path) -> bool:
    """Tell whether a file has the user whom the pages name."""
    return "196" in read_interactions(path)[0].user_ids


def plan_of(reader: Reader, kit: str, name: str) -> None:
    """Write a kit's settings, but for what the page adds, into the reader's folder."""
    text = next((reader.cwd / "kits" / kit).glob("*.toml")).read_text(encoding="utf-8")
    (reader.cwd / name).write_text(text.partition("\n[data]")[0] + "\n", encoding="utf-8")


def clients(reader: Reader, *names: str) -> None:
    """Start clients in terminals of their own, from kits."""
    for name in names:
        reader.start(f"fedrec client run kits/clients/{name}/client.toml")


def authority(reader: Reader) -> None:
    """Start the key authority in a terminal of its own."""
    reader.start(f"{AUTHORITY} {reader.in_place_of('127.0.0.1:7447')}")


def coordinators_folder(reader: Reader) -> None:
    """What the coordinator's operator was given, and agreed on with all."""
    kits(reader)
    plan_of(reader, "coordinator", "run.toml")
    reader.command("cp -r kits/coordinator keys && mv keys/catalogue.csv .")
    reader.command("cp kits/authority/operator.pem .")
    (reader.cwd / "backups").mkdir()


def the_others_come(reader: Reader) -> None:
    """Key authority and clients start on their machines."""
    authority(reader)
    clients(reader, *HOSPITALS)


def coordinator_ends(reader: Reader) -> None:
    """Press Ctrl-C where the coordinator runs."""
    reader.ends("fedrec coordinator run")


RUN_A_COORDINATOR = Script(
    given=coordinators_folder,
    instead={" /backups/": " backups/"},
    files={"[data]": "run.toml"},
    before={
        "fedrec status": the_others_come,
        "mv coordinator-state": coordinator_ends,
    },
)


def clients_folder(reader: Reader) -> None:
    """What a data owner was given; every other user runs."""
    kits(reader)
    plan_of(reader, "clients/hospital-a", "run.toml")
    kit = "kits/clients/hospital-a"
    reader.command(f"mkdir keys && cp {kit}/authority.pub.json keys && mv {kit}/interactions.csv .")
    reader.command(f"mv {kit}/invitation.pem hospital-a.pem")
    reader.start("fedrec coordinator run kits/coordinator/coordinator.toml")
    authority(reader)
    clients(reader, *HOSPITALS[1:])


def client_ends(reader: Reader) -> None:
    """Wait until the client's run is over."""
    reader.awaits_end("fedrec client run run.toml")


RUN_A_CLIENT = Script(
    given=clients_folder,
    files={"[data]": "run.toml"},
    before={
        "fedrec client run run.toml --accept-other-arithmetic": client_ends,
        "fedrec recommend run.toml --user 196": client_ends,
    },
)


def served(reader: Reader) -> None:
    """A client that took part in a run, a folder with its model, and a certificate."""
    kits(reader)
    assert "protocol full" in reader.command("fedrec up --no-page")
    reader.command("cd kits/clients/hospital-a")
    reader.command("fedrec client export-model client.toml --to runs/movies-20260101-120000")
    (reader.cwd / "new-films.txt").write_text("313\n316\n", encoding="utf-8")
    reader.command(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        " -keyout key.pem -out chain.pem -days 2 -subj /CN=films.example"
    )


def server_ends(reader: Reader) -> None:
    """Press Ctrl-C where the server runs."""
    reader.ends("fedrec client serve")


def is_ready(reader: Reader) -> None:
    """Wait until the server has read the model."""
    address = reader.in_place_of("http://127.0.0.1:7480/health")

    def answers() -> bool:
        with suppress(HTTPError), urlopen(address) as health:
            return bool(json.load(health)["version"])
        return False

    poll(answers, "the server has a model")


def is_answered(reader: Reader, output: str) -> None:
    """The answer has the fields of the page's."""
    (shown,) = blocks((ROOT / reader.page).read_text(encoding="utf-8"), "json")
    promised, answer = json.loads(shown), json.loads(output[output.index("{") :])
    assert set(answer) == set(promised), output
    assert set(answer["items"][0]) == set(promised["items"][0]), output


HAND_OUT = Script(
    given=served,
    instead={"10.0.0.5": "127.0.0.1", "serve client.toml": "serve client.toml --port 7480"},
    before={
        "fedrec client serve client.toml --": server_ends,
        "fedrec client export": server_ends,
        "curl": is_ready,
    },
    after={"curl": is_answered},
)

OPERATE = {
    "docs/how-to/hand-out-recommendations.md": HAND_OUT,
    "docs/how-to/run-a-client.md": RUN_A_CLIENT,
    "docs/how-to/run-a-coordinator.md": RUN_A_COORDINATOR,
}
