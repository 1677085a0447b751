"""All users' recommendations in one file, as `Recommender` makes them."""

from __future__ import annotations

import csv
from itertools import cycle, islice

import numpy as np
import pyarrow.parquet as pq
import pytest
from client.support.silo import Silo

from fedrec.cli.main import main
from fedrec.data import Catalogue
from fedrec.errors import DataError, SettingsError, StorageError
from fedrec.settings.validation import load_settings
from fedrec_client.recommending import Wanted, export_recommendations, own_recommender


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> Silo:
    made = Silo(tmp_path_factory.mktemp("silo"))
    made.publish(3)
    return made


def test_parquet_has_every_user_s_best_with_their_bits(silo, tmp_path):
    file = tmp_path / "all.parquet"
    found = export_recommendations(silo.settings, file, Wanted(n=7))
    table = pq.read_table(file)
    assert table.schema.names == ["user_id", "rank", "item_id", "title", "score", "version"]
    assert table.schema.metadata[b"fedrec.version"] == b"3"
    assert (found.version, found.n_users, found.n_rows) == (3, 24, table.num_rows)
    own = own_recommender(silo.settings)
    rows = table.to_pylist()
    for user in own.user_ids:
        ids, scores = own.recommend(user, 7)
        mine = [row for row in rows if row["user_id"] == user]
        assert [row["rank"] for row in mine] == list(range(1, len(ids) + 1))
        assert [row["item_id"] for row in mine] == ids.tolist()
        assert [row["title"] for row in mine] == [f"Film {item}" for item in ids]
        said = np.array([row["score"] for row in mine], dtype=np.float32)
        assert said.tobytes() == scores.tobytes()
        assert {row["version"] for row in mine} == {3}
    assert file.stat().st_mode & 0o777 == 0o600


def test_who_has_less_to_choose_from_has_fewer_rows(silo, tmp_path):
    own = own_recommender(silo.settings)
    some = [item for item in own.catalogue.item_ids if own.learned(item)][:6]
    wanted = Wanted(n=50, candidates=some, exclude=some[:1])
    found = export_recommendations(silo.settings, tmp_path / "few.parquet", wanted)
    had = [set(own.history_of(user)) for user in own.user_ids]
    assert found.n_rows == sum(len(set(some[1:]) - items) for items in had)
    assert {*pq.read_table(tmp_path / "few.parquet")["item_id"].to_pylist()} <= {*some[1:]}


def test_csv_says_the_same(silo, tmp_path):
    export_recommendations(silo.settings, tmp_path / "all.parquet", Wanted(n=3))
    export_recommendations(silo.settings, tmp_path / "all.csv", Wanted(n=3))
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert rows == [{name: str(value) for name, value in row.items()} for row in table]
    assert (tmp_path / "all.csv").stat().st_mode & 0o777 == 0o600


def test_no_title_is_a_formula_to_a_spreadsheet(silo, tmp_path):
    catalogue = Catalogue.load(silo.state / "catalogue.csv")
    titles = ["=HYPERLINK(0)", "+1-cmd|'/C'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\uff1d1"]
    safe = ["-5", "+3.5e7", "-.5", "'quoted", "2001: A Space Odyssey", "a=b", "x"]
    named = list(islice(cycle([*titles, *safe]), len(catalogue)))
    Catalogue.of(catalogue.item_ids, named).save(tmp_path / "named.csv")
    settings = load_settings(silo.settings_file, {"data.catalogue": str(tmp_path / "named.csv")})
    wanted = Wanted(n=len(catalogue), exclude_seen=False)
    for form in ("csv", "parquet"):
        export_recommendations(settings, tmp_path / f"all.{form}", wanted)
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        shown = {row["title"] for row in csv.DictReader(file)}
    exact = {*pq.read_table(tmp_path / "all.parquet")["title"].to_pylist()}
    assert exact == {*titles, *safe}
    assert shown == {f"'{title}" for title in titles} | set(safe)


def test_nothing_is_replaced_unasked_and_nothing_is_left_behind(silo, tmp_path):
    file = tmp_path / "all.csv"
    file.write_text("mine")
    with pytest.raises(DataError, match="nothing was changed"):
        export_recommendations(silo.settings, file, Wanted())
    with pytest.raises(SettingsError, match="ending"):
        export_recommendations(silo.settings, tmp_path / "all.xlsx", Wanted())
    with pytest.raises(DataError, match="--exclude nothing"):
        export_recommendations(silo.settings, file, Wanted(exclude=["nothing"]), force=True)
    with pytest.raises(StorageError, match="cannot be written"):
        export_recommendations(silo.settings, tmp_path / "missing" / "all.csv", Wanted())
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]
    export_recommendations(silo.settings, file, Wanted(), force=True)
    assert file.read_text().startswith("user_id,")


def test_the_commands(silo, tmp_path, capsys):
    def call(*words: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        shown = capsys.readouterr()
        return left.value.code or 0, shown.out, shown.err

    settings = silo.settings_file
    code, out, _ = call("client", "export", settings, "--to", tmp_path / "a.parquet", "-n", 2)
    assert code == 0
    assert "48 recommendations to 24 users" in out
    own = own_recommender(silo.settings)
    chosen = tmp_path / "chosen.txt"
    best = own.recommend(silo.user, 4)[0].tolist()
    chosen.write_text("\n".join(best[1:]) + "\n\n")
    words = ("--candidates", f"@{chosen}", "--exclude", best[2])
    code, out, _ = call("recommend", settings, "--user", silo.user, *words)
    assert [line.split()[2] for line in out.splitlines()] == ["item", best[1], best[3]]
    assert f"Film {best[1]}" in out
    code, out, _ = call("recommend", settings, "--similar", best[0], "-n", 2)
    likes = own.similar_items(best[0], 2)[0].tolist()
    assert [line.split()[2] for line in out.splitlines()] == ["item", *likes]
    for wrong, said in (
        ((), "--user, --history and --similar"),
        (("--user", silo.user, "--similar", best[0]), "--user, --history and --similar"),
        (("--similar", "nothing"), "--similar nothing"),
        (("--user", silo.user, "--exclude", "@missing.txt"), "cannot be read"),
    ):
        code, _, err = call("recommend", settings, *wrong)
        assert code == 2
        assert said in err
    chosen.write_text(f"{best[0]}\nnothing\n")
    code, _, err = call("recommend", settings, "--user", silo.user, *words[:2])
    assert code == 2
    assert f"@{chosen}, line 2" in err
