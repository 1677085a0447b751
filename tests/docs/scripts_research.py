"""How the pages about data, runs and figures are typed."""

from __future__ import annotations

from docs.reader import Reader, Script

RUN = "runs/movies-20260101-120000"
VISITS = """customer,product,when
anna,bread,2026-01-01
anna,milk,2026-01-02
anna,cheese,2026-01-03
anna,beer,2026-01-04
anna,wine,2026-01-05
ben,,2026-01-02
ben,milk,yesterday
ben,bread,2026-01-01
cleo,milk,2026-01-02
"""
NO_HEADER = "1,55,5,875072688\n2,55,4,875072690\n2,56,4,875072700\n"
ORDERS = "user,item,date\na,x,01/02/2021\nb,y,02/01/2021\nc,z,03/04/2021\n"


def visits(reader: Reader) -> None:
    """A table of one's own, and the files that the page is told cannot be read so."""
    (reader.cwd / "visits.csv").write_text(VISITS, encoding="utf-8")
    (reader.cwd / "nohead.csv").write_text(NO_HEADER, encoding="utf-8")
    (reader.cwd / "orders.csv").write_text(ORDERS, encoding="utf-8")


def refusals(reader: Reader, output: str) -> str:
    """What is said of rows that cannot be read, of no header, and of dates with two meanings."""
    output += reader.command("fedrec data describe nohead.csv", code=2)
    return output + reader.command("fedrec data describe orders.csv", code=2)


def of_movies(reader: Reader) -> None:
    """The settings of the page are read with the file; more people's data is at hand."""
    described = reader.command("fedrec check own.toml --json --set federation.minimum_item_users=1")
    assert '"own.toml:6"' in described
    reader.command("fedrec data fetch ml-100k --into data --force")


BRING_YOUR_OWN_DATA = Script(
    given=visits,
    files={'[data]\npath = "visits.csv"': "own.toml"},
    before={"fedrec data split": of_movies},
    after={"fedrec data describe visits.csv": refusals},
    shows={"fedrec data describe": "."},
)


def trained(reader: Reader) -> None:
    """The folder of a simulation."""
    settings(reader)
    reader.command("fedrec simulate run.toml --set rounds.total=2")
    reader.command(f"mv runs/* aside && mkdir -p runs && mv aside {RUN}")


def settings(reader: Reader) -> None:
    """MovieLens 100K, and settings for it."""
    reader.command("fedrec data fetch ml-100k --into data")
    reader.command("fedrec init run.toml --data data/interactions.csv --clients 3 --name movies")


def trained_twice(reader: Reader) -> None:
    """The folders of two simulations."""
    trained(reader)
    reader.command(f"mv {RUN} first")
    reader.command("fedrec simulate run.toml --set rounds.total=2 --set algorithm.dim=8")
    reader.command("mv runs/* runs/movies-20260102-120000")
    reader.command(f"mv first {RUN}")


READ_A_RUN_FOLDER = Script(
    given=trained_twice,
    instead={
        "--log tensorboard": "--log tensorboard --set rounds.total=2 --set output.runs=logged"
    },
)
CHOOSE_A_PROTECTION = Script(
    given=settings,
    instead={"--no-second-act": "--no-second-act --synthetic --rounds 2"},
)
ADD_NOISE = Script(files={"[privacy]": "run.toml", "[algorithm]": "ease.toml"})


def few_people(reader: Reader) -> None:
    """Sixty people's interactions in place of all, and two rounds in place of ten."""
    reader.command("awk -F, 'NR == 1 || $1 <= 60' data/interactions.csv > some")
    reader.command("mv some data/interactions.csv && export FEDREC_ROUNDS__TOTAL=2")


def evaluated(reader: Reader) -> None:
    """An evaluation has the page's name."""
    if "runs/movies-evaluate-20260101-120000" not in reader.command("ls -d runs/*"):
        reader.command("mv $(ls -d runs/movies-evaluate-* | head -n 1) aside")
        reader.command("mv aside runs/movies-evaluate-20260101-120000")


def tuned(reader: Reader) -> None:
    """The first study has the page's name."""
    reader.command("mv $(ls -d runs/movies-tune-* | head -n 1) tuned")
    reader.command("mv tuned runs/movies-tune-20260101-120000")


def simulated(reader: Reader) -> None:
    """A simulation has the page's name."""
    reader.command("fedrec simulate run.toml --set output.runs=others && mkdir -p runs")
    reader.command(f"mv others/* {RUN}")


COMPARE = Script(
    # The first evaluation is whole; of the others one seed, or no references.
    instead={
        "run.toml --protocols": "run.toml --seeds 1 --protocols",
        "run.toml --lists-at": "run.toml --seeds 1 --no-references --lists-at",
        "run.toml --skip": "run.toml --seeds 1 --budget 1 --skip",
        "run.toml --budget 8": "run.toml --seeds 1 --budget 1",
        "run.toml --diagnostics": "run.toml --seeds 1 --no-references --diagnostics",
        "fedals,sketch,ease,fedmf": "sketch,ease --trials 2",
        "tune run.toml": "tune run.toml --trials 2",
        "--trials 40": "--trials 3",
        "run.toml --seeds 5": "run.toml --seeds 5 --no-references",
        "--seeds 1,7,42": "--seeds 1,7,42 --no-references",
        "class Random": "import numpy as np\n\nfrom fedrec_lab.comparison.references.reference "
        "import ScoredReference\nfrom fedrec_lab.comparison.references.search import Axis"
        "\n\n\nclass Random",
        "return fit": "return fit\n\n\nscores = Random().prepare([()] * 3, 5)((1.0,), 1)\n"
        "assert scores(slice(2)).shape == (2, 5)\n",
    },
    before={
        "fedrec init": few_people,
        "fedrec evaluate runs/movies-evaluate": evaluated,
        "fedrec evaluate runs/movies-2026": simulated,
        "fedrec simulate runs/movies-tune": tuned,
    },
)


def reproduced(reader: Reader) -> None:
    """A reproduction has the page's name."""
    reader.command("mv runs/reproduce-* aside && mv aside runs/reproduce-20260101-120000")


REPRODUCE = Script(
    instead={"pfedrec/ml-100k": "pfedrec/ml-100k --rounds 1 --protocols paper"},
    before={"fedrec reproduce --resume": reproduced},
)


def audited(reader: Reader) -> None:
    """Settings of the page's, and few people's data."""
    settings(reader)
    few_people(reader)


UPDATE_STRUCTURES = Script(before={"fedrec audit run.toml --only indices": audited})

ADD_AN_ALGORITHM = Script(
    instead={
        "Parameter(": "from fedrec.algorithms import Normal, Parameter\n\ndim = 8\nParameter(",
        "Phase(": "from fedrec.algorithms import Phase, Sgd\n\n"
        'head, rows = {"head": 0.1}, {"item_embedding": 0.1}\nPhase(',
    },
)

RESEARCH = {
    "docs/explanation/encryption-costs.md": Script(
        instead={"fedrec reproduce colr/costs": "fedrec reproduce colr/costs --sizes-only"}
    ),
    "docs/explanation/update-structures.md": UPDATE_STRUCTURES,
    "docs/how-to/add-an-algorithm.md": ADD_AN_ALGORITHM,
    "docs/how-to/add-noise.md": ADD_NOISE,
    "docs/how-to/choose-a-protection.md": CHOOSE_A_PROTECTION,
    "docs/how-to/compare-with-references.md": COMPARE,
    "docs/how-to/read-a-run-folder.md": READ_A_RUN_FOLDER,
    "docs/how-to/reproduce-a-paper.md": REPRODUCE,
}
