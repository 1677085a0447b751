"""How the reference of commands is typed: each example by itself, for few people's data."""

from __future__ import annotations

from docs.reader import Reader, Script
from docs.scripts_research import RUN, reproduced, tuned
from world.clock import poll

ADDRESS = "127.0.0.1:7447"
TRIAL = f"fedrec provision --data data/interactions.csv --clients a,b,c --address {ADDRESS}"


def everything(reader: Reader) -> None:
    """Files of every kind, settings, and a run of two rounds where there would be ten."""
    reader.command("fedrec data fetch ml-100k --into data")
    reader.command("awk -F, 'NR == 1 || $1 <= 60 || $1 == 196' data/interactions.csv > some")
    reader.command("mv some data/interactions.csv && export FEDREC_ROUNDS__TOTAL=2")
    reader.command("cp data/interactions.csv . && cp data/catalogue.csv items.csv")
    reader.command('awk -F, \'NR > 1 {print $1 "," $2 ",5," $3}\' interactions.csv > ratings.csv')
    reader.command("gzip ratings.csv && printf '313\\n316\\n' > films.txt")
    reader.command("sed 's/user_id/customer/' interactions.csv > shop.csv")
    reader.command(
        "python -c 'import pyarrow.csv, pyarrow.parquet as pq;"
        ' pq.write_table(pyarrow.csv.read_csv("shop.csv"), "ratings.parquet")\''
    )
    reader.command("printf 'user\\titem\\trating\\ttime\\n' > votes.tsv")
    reader.command('awk -F, \'NR > 1 {print $1 "\\t" $2 "\\t5\\t" $3}\' shop.csv >> votes.tsv')
    reader.command("fedrec init run.toml --data data/interactions.csv --clients 3 --name movies")
    reader.command("fedrec init taught.toml --algorithm fedmf --data data/interactions.csv")
    reader.command(f"fedrec simulate run.toml && mv runs/* kept && mv kept {RUN}")


def anew(reader: Reader) -> None:
    """Every example begins without what the one before it wrote."""
    reader.command("rm -rf federation.toml kits")


def stopped(reader: Reader) -> None:
    """A simulation of many rounds is stopped by Ctrl-C, and has the page's name."""
    reader.command(f"export FEDREC_ROUNDS__TOTAL=150 && mv {RUN} two-rounds")
    simulation = "fedrec simulate run.toml --set output.runs=stopped"
    reader.start(simulation)
    poll(lambda: "round 3/" in reader.running[simulation].output, "its third round")
    reader.running[simulation].interrupt()
    reader.awaits_end(simulation, codes=(130,))
    reader.command(f"mv stopped/* {RUN}")


def two_rounds(reader: Reader) -> None:
    """Two rounds again."""
    reader.command("export FEDREC_ROUNDS__TOTAL=2")


def evaluated(reader: Reader) -> None:
    """An evaluation has the page's name: that of the shortest line, which is first."""
    reader.command("mv $(ls -d runs/movies-evaluate-* | head -n 1) evaluated")
    reader.command("mv evaluated runs/movies-evaluate-20260101-120000")


def kits_anew(reader: Reader) -> None:
    """The settings stay, the kits go."""
    reader.command("rm -r kits")


def provisioned(reader: Reader) -> None:
    """A trial's kits, and the operator's certificate."""
    anew(reader)
    reader.command(reader.in_place_of(TRIAL) + " && cp kits/authority/operator.pem .")


def trial(reader: Reader) -> None:
    """A trial's kits, twice."""
    if not (reader.cwd / "trial").exists():
        provisioned(reader)
        reader.command("mkdir trial && cp -r kits trial")


def finished(reader: Reader) -> None:
    """The trial's coordinator stays after its run, with a page."""
    if not reader.running:
        page = reader.in_place_of("127.0.0.1:7448")
        reader.start(f"fedrec coordinator run kits/coordinator/coordinator.toml --page {page}")
        reader.command("cp kits/authority/operator.pem .")


def authority_ends(reader: Reader) -> None:
    """One process at a time uses the authority's folder."""
    reader.ends("fedrec keys authority run")
    reader.command("ln -s kits/authority keys")


def elsewhere(reader: Reader) -> None:
    """Runs in another folder."""
    reader.command("mkdir elsewhere && cp -r runs elsewhere")


def another(reader: Reader) -> None:
    """The folder of a second simulation."""
    later = RUN.replace("20260101", "20260102")
    if not (reader.cwd / later).exists():
        reader.command("fedrec simulate run.toml --set algorithm.dim=8 --set output.runs=others")
        reader.command(f"mv others/* {later}")


def running(reader: Reader) -> None:
    """A coordinator whose run waits for its members."""
    reader.ends("fedrec coordinator run")
    provisioned(reader)
    reader.start("fedrec coordinator run kits/coordinator/coordinator.toml")


CLI = Script(
    given=everything,
    instead={
        "fetch ml-100k --into data": "fetch ml-100k --into fetched",
        "ratings.parquet --into data": "ratings.parquet --into imported",
        "votes.tsv --into data": "votes.tsv --into voted",
        "check run.toml --items": "check plain.toml --items",
        "audit run.toml --only": "audit taught.toml --only",
        "20260102-120000 --out compared": "20260102-120000 --out page",
        "tune run.toml": "tune run.toml --trials 2",
        "--trials 40 --seeds 3": "--trials 3 --seeds 2",
        "--algorithms fedmf,fedals,ease,sketch": "--algorithms sketch,ease --trials 2",
        "topk --sample 4000": "topk --sample 20",
        "evaluate run.toml": "evaluate run.toml --seeds 1 --no-references",
        "--seeds 5 --skip centralised-ncf": "--seeds 2 --skip centralised-ncf",
        "pfedrec/ml-100k": "pfedrec/ml-100k --rounds 1 --protocols paper",
    },
    before={
        "fedrec check --upgrade": provisioned,
        "fedrec init": anew,
        "fedrec provision --data": anew,
        "fedrec provision --catalogue": anew,
        "fedrec provision federation.toml": kits_anew,
        "fedrec simulate run.toml --resume": stopped,
        "fedrec tune": two_rounds,
        "fedrec tune run.toml --resume": tuned,
        "fedrec evaluate run.toml --resume": evaluated,
        "fedrec reproduce --resume": reproduced,
        "fedrec up": trial,
        "fedrec keys authority run recommender": finished,
        "fedrec keys authority run 127.0.0.1": authority_ends,
        "fedrec runs elsewhere": elsewhere,
        "fedrec runs compare": another,
        "fedrec status": finished,
        "fedrec stop": running,
    },
)

REFERENCE = {"docs/reference/cli.md": CLI}
