"""`fedrec data` normalises, describes and deals out."""

from __future__ import annotations

import stat
from pathlib import Path

from fedrec.data import Catalogue, Reading, read_interactions

from .conftest import Fedrec


def test_import_normalises_and_reports_bad_rows(fedrec: Fedrec, tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text("who,what,when\nb,2,5\na,1,3\na,1,9\n,1,4\na,7,\n")
    columns = ("--user-column", "who", "--item-column", "what", "--timestamp-column", "when")
    outcome = fedrec("data", "import", raw, "--into", tmp_path / "out", *columns, "--json")
    assert outcome.code == 0
    assert outcome.json["n_bad"] == 1
    assert outcome.json["n_interactions"] == 3
    assert f"{raw}:5: the user's id is ''" in outcome.err
    text = (tmp_path / "out" / "interactions.csv").read_text().splitlines()
    assert text == ["user_id,item_id,timestamp", "a,1,9", "a,7,", "b,2,5"]
    catalogue = Catalogue.load(tmp_path / "out" / "catalogue.csv")
    assert catalogue.fingerprint() == outcome.json["catalogue_fingerprint"]
    assert fedrec("data", "import", raw, "--into", tmp_path / "s", *columns, "--strict").code == 2


def test_nothing_is_replaced_unasked(
    fedrec: Fedrec, tmp_path: Path, interactions_file: Path
) -> None:
    again = ("data", "import", interactions_file, "--into", interactions_file.parent)
    assert "already; nothing was changed" in fedrec(*again).err
    assert fedrec(*again, "--force").code == 0


def test_minimum_interactions(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> None:
    outcome = fedrec(
        "data", "import", interactions_file, "--into", tmp_path / "x",
        "--minimum-interactions", 1000,
    )  # fmt: skip
    assert outcome.code == 2
    assert "Lower --minimum-interactions" in outcome.err


def test_describe(fedrec: Fedrec, interactions_file: Path) -> None:
    found = fedrec("data", "describe", interactions_file, "--json").json
    assert (found["n_users"], found["layout"]) == (24, "csv")
    assert "items with one holder" in fedrec("data", "describe", interactions_file).out


def test_catalogue(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> None:
    out = tmp_path / "made.csv"
    found = fedrec("data", "catalogue", interactions_file, "--out", out, "--json").json
    assert Catalogue.load(out).fingerprint() == found["fingerprint"]
    assert fedrec("data", "catalogue", interactions_file, "--out", out).code == 2


def test_split_deals_every_user_to_one_private_folder(
    fedrec: Fedrec, tmp_path: Path, interactions_file: Path
) -> None:
    into = tmp_path / "clients"
    command = ("data", "split", interactions_file, "--clients", 3, "--into", into)
    found = fedrec(*command, "--json").json
    users: list[str] = []
    for row in found["clients"]:
        folder = Path(row["path"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "interactions.csv").stat().st_mode) == 0o600
        part, _ = read_interactions(folder / "interactions.csv", Reading(strict=True))
        users += sorted(set(part.user_ids.tolist()))
    assert len(users) == len(set(users)) == 24
    beside = Catalogue.load(interactions_file.parent / "catalogue.csv")
    assert Catalogue.load(into / "catalogue.csv") == beside
    assert fedrec(*command).code == 2
    assert fedrec("data", "split", interactions_file, "--clients", 99, "--into", into).code == 2


def test_an_unknown_dataset_names_the_known(fedrec: Fedrec) -> None:
    outcome = fedrec("data", "fetch", "netflix")
    assert outcome.code == 2
    assert "Known are: ml-100k." in outcome.err
