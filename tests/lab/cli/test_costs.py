"""`fedrec reproduce` of tables of costs, as people and as programs read them."""


def test_the_whole_table(fedrec):
    outcome = fedrec("reproduce", "colr/costs", "--sizes-only")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    minutes, topk = (line.split() for line in lines if line.startswith("topk/4-of-64"))
    assert minutes[1:] == ["published", "10.05", "169.82", "179.87"]
    assert topk[1:] == ["14824", "published", "353", "365", "12112", "116", "104.20"]
    minutes, colr = (line.split() for line in lines if line.startswith("colr/rank-8"))
    assert minutes[1:] == ["published", "10.05", "169.29", "179.34"]
    assert colr[1:] == ["29648", "published", "0.07", "0.24-0.25", "3073", "116", "26.44"]
    assert sum("according to the paper's rules" in line for line in lines) == 12


def test_some_rows_for_programs(fedrec):
    found = fedrec("reproduce", "colr/costs/colr", "--sizes-only", "--json").json
    rows = found["rows"]
    assert [row["published"]["name"] for row in found["times"]] == [
        f"colr/rank-{rank}" for rank in (1, 2, 4, 8, 16, 32)
    ]
    assert all(row["ours"]["computation_minutes"] is None for row in found["times"])
    assert [row["published"]["name"] for row in rows] == [
        f"colr/rank-{rank}" for rank in (1, 2, 4, 8, 16, 32)
    ]
    for row in rows:
        sets = {(own["protection"], own["preset"]) for own in row["ours"]}
        assert {("ckks", "paper"), ("paillier", "packed-3072")} <= sets
        assert all(own["client_seconds"] is None for own in row["ours"])


def test_an_unknown_row_is_named(fedrec):
    outcome = fedrec("reproduce", "colr/costs/scolr")
    assert outcome.code == 2
    assert "'scolr'" in outcome.err


def test_a_structure_that_is_not_encrypted_has_minutes_alone(fedrec):
    outcome = fedrec("reproduce", "colr/costs/svd", "--sizes-only")
    assert outcome.code == 0
    assert "table 2" in outcome.out and "table 3" not in outcome.out


def test_the_space_table(fedrec):
    lines = fedrec("reproduce", "pfedclr/space").out.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("pfedclr/ml-100k"))
    assert row == ["pfedclr/ml-100k", "943", "1,682", "0.1157", "0.1157", "96.9121", "96.9121"]
    rows = fedrec("reproduce", "pfedclr/space", "--json").json["rows"]
    assert len(rows) == 15
    (found,) = (row for row in rows if row["published"]["server_mb"] == 955.1355
                and row["published"]["method"] == "pfedclr")  # fmt: skip
    assert found["by_rule"]["server_bytes"] == 1270 * 12322 * 16 * 4
