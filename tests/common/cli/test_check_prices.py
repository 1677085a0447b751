"""What `fedrec check` prices before a run starts, against sums done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from world.plans import check_plan, plan_of

from fedrec.cli.pricing import tables_price, tables_rows, tables_warnings
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.plan.layout import Layout, vector_spec
from fedrec.plan.price import parameter_sets, price
from fedrec.plan.schema import Plan
from fedrec.plan.settings_warnings import warnings_for
from fedrec.plan.sizing import sizes
from fedrec.protection import PROTECTIONS
from fedrec.protection.encryption_parameters import CKKS_PRESETS
from fedrec.settings.schema import Settings


def test_the_margin_by_hand():
    found = {(s.protection, s.preset): s for s in parameter_sets(Plan(), 100)}
    lean = found["ckks", "lean"]
    assert (lean.modulus_bits, lean.most_modulus_bits, lean.security_bits) == (109, 109, 128)
    paper = found["ckks", "paper"]
    assert (paper.modulus_bits, paper.most_modulus_bits, paper.security_bits) == (200, 438, 256)
    assert lean.bytes_per_value == lean.message_bytes / (256 * 5 + len(METRIC_NAMES))


def test_a_set_that_cannot_carry_the_sums_says_so(fedrec, settings_file, monkeypatch):
    helpless = replace(CKKS_PRESETS["paper"], choices=())
    monkeypatch.setitem(CKKS_PRESETS, "paper", helpless)
    sets = fedrec("check", settings_file, "--json").json["sets"]
    (broken,) = (entry for entry in sets if entry["problem"])
    assert (broken["protection"], broken["preset"]) == ("ckks", "paper")
    assert broken["message_bytes"] == 0
    lines = fedrec("check", settings_file).out.splitlines()
    (line,) = (row for row in lines if "ckks, paper" in row and "cannot" in row)
    assert "No parameters of ckks/paper keep the sum of 64 messages exact" in line


def test_the_price_where_members_decrypt_by_hand():
    shared = {"key_holder": "members"}
    plan = plan_of(rounds={"total": 8}, protection=shared)
    found = price(plan, n_items=100, n_clients=4)
    # 100 items travel as 256 rows at most, of rank 4 and a count each, and 45 metric sums.
    spec = vector_spec(plan, 100)
    assert spec.length == 256 * 5 + 45
    planned = PROTECTIONS["bfv"].plan(spec)
    upload = planned.message_bytes
    assert (found.facts["n_rows"], found.up_bytes) == (256, upload)
    assert "expected" not in found.parts
    # The count round has 100 counts and 45 sums: one block.
    counting = upload - (planned.n_blocks - 1) * planned.frame_bytes
    assert found.parts["count"].up_bytes == counting
    assert found.facts["n_rounds"] == 10
    assert found.facts["dense_plain_bytes"] == 4 * 100 * 32
    # Every client fetches the ciphertext sum, which is as long as an update.
    assert (found.down_bytes, found.authority_bytes) == (upload, 0)
    assert found.total_bytes == 4 * 2 * counting + 9 * 4 * 2 * upload


def test_the_price_with_a_key_authority_by_hand():
    plan = plan_of(rounds={"total": 8})
    found = price(plan, n_items=100, n_clients=4)
    upload = PROTECTIONS["bfv"].plan(vector_spec(plan, 100)).message_bytes
    assert found.authority_bytes == 4 * upload
    assert found.down_bytes < upload / 2, "the sum is sealed, not encrypted"
    per_round = 4 * (upload + found.down_bytes) + 4 * upload
    count = found.parts["count"]
    counted = 4 * (count.up_bytes + count.down_bytes) + 4 * count.up_bytes
    assert found.total_bytes == counted + 9 * per_round


def test_what_is_expected_follows_from_the_items_that_enough_users_hold():
    plan = plan_of(algorithm={"name": "fedals"}, update={"structure": "dense"}, rounds={"total": 8})
    found = price(plan, n_items=105_000, n_clients=4, n_active=4_400)
    alone = price(plan, n_items=4_400, n_clients=4)
    expected = found.parts["expected"]
    assert (expected.facts["n_active"], expected.facts["n_rows"]) == (4_400, 4_608)
    assert found.facts["n_rows"] == 105_216
    assert expected.up_bytes < found.up_bytes / 20
    assert expected.up_bytes == alone.up_bytes
    assert expected.total_bytes <= 1.3 * alone.total_bytes


def test_ease_is_priced_for_what_it_can_take_of_a_large_catalogue():
    plan = plan_of(algorithm={"name": "ease"}, update={"structure": "dense"}, rounds={"total": 10})
    found = price(plan, n_items=17_632, n_clients=4, n_active=1_530)
    # 1,536 rows have 1,178,880 pairs, a tenth of which travels in a round.
    spec = Layout.of(plan, 1_536).vector_spec
    assert spec.segments[0].length == 117_888
    assert found.parts["expected"].up_bytes < found.up_bytes / 50


def test_under_noise_all_rows_travel_whatever_is_held():
    plan = plan_of(
        algorithm={"name": "fedmf"},
        privacy={"mechanism": "gaussian"},
        rounds={"total": 8, "minimum_clients": 4},
    )
    found = price(plan, n_items=1_000, n_clients=4, n_active=10)
    assert found.facts["n_rows"] == 1_000 and "expected" not in found.parts


def test_without_encryption_no_party_reveals():
    plan = plan_of(protection={"name": "none"})
    found = price(plan, n_items=100)
    assert found.authority_bytes == 0
    assert found.facts["n_clients"] == plan.rounds.minimum_clients
    assert found.up_bytes == found.down_bytes


@pytest.mark.parametrize("preset", ["default", "wide"])
def test_noisy_values_travel_whole(preset):
    """Sums of limbs tell more than the sum that shares of noise cover."""

    def limbs(privacy: dict[str, str]) -> tuple[int, ...]:
        protection = {"name": "bfv", "preset": preset}
        plan = plan_of(protection=protection, privacy=privacy)
        return PROTECTIONS["bfv"].plan(vector_spec(plan, 1), preset=preset).limbs

    assert limbs({"mechanism": "gaussian"}) == (1, 1, 1)
    # A whole client's noise is enough in every message, however its values travel.
    assert (limbs({"mechanism": "laplace"})[0] > 1) == (preset == "default")


@pytest.mark.parametrize("preset", ["lean", "paper"])
def test_noise_that_would_have_to_be_split_is_refused(preset):
    """Slots of these sets take no FedMF sum of 20 fractional bits whole."""
    sections = {"protection": {"name": "ckks", "preset": preset}}
    assert check_plan(Plan.model_validate(sections)) == []
    noisy = Plan.model_validate(sections | {"privacy": {"mechanism": "gaussian"}})
    (sentence,) = check_plan(noisy)
    assert f"ckks/{preset} can carry the sum" in sentence
    assert "splitting noisy values into limbs" in sentence


def paper_topk(**rounds: int) -> Plan:
    """The CoLR paper's encrypted Top-K on MovieLens 100K: 841 of 1682 x 32 values.

    Its clients share the key, as the paper's do.
    """
    scheme = {"name": "paillier", "preset": "single-3072", "key_holder": "members"}
    return plan_of(
        federation={"maximum_users": 943, "minimum_item_users": 1},
        algorithm={"name": "fedmf", "dim": 32},
        update={"structure": "topk", "ratio": 1 / 64, "indices": "clear"},
        protection=scheme,
        rounds=rounds,
    )


def test_the_papers_encrypted_topk_is_priced():
    found = price(paper_topk(), n_items=1682, n_clients=8)
    # ceil(1682 x 32 / 64) entries of 768 + 4 bytes, and 1792 counts of 10 bits with 44 metrics in
    # blocks of 3072 - 1 - 64 bits.
    assert 841 * 772 < found.up_bytes < 841 * 772 + 10 * 768
    assert found.up_bytes <= 0.75 * 2**20
    places = 1792 * 32
    opening = found.parts["opening"].facts
    assert (opening["entries"], opening["n_places"]) == (841, places)
    assert opening["expected_entries"] == math.ceil(places * (1 - (1 - 841 / places) ** 8))
    assert opening["most_entries"] == 8 * 841
    assert opening["report_seconds"] == opening["seconds"] > 6000 * 0.03
    hidden = paper_topk().model_dump()
    hidden["update"]["indices"] = "hidden"
    assert "opening" not in price(Plan.model_validate(hidden), n_items=1682, n_clients=8).parts


def test_943_clients_of_one_user_are_priced():
    found = price(paper_topk(clients_per_round=943), n_items=1682, n_clients=943)
    opening = found.parts["opening"].facts
    assert opening["expected_entries"] == opening["most_entries"] == 1792 * 32
    # Every client fetches the sum: every place once, and its index.
    assert found.down_bytes == opening["sum_bytes"]
    assert 0 < found.down_bytes - 1792 * 32 * 772 < 10 * 768 + 44
    seen = warnings_for(paper_topk(), n_items=1682)
    assert any("indices are not" in warning and "indices`" in warning for warning in seen)
    assert any("--accept-exposure" in warning for warning in seen)
    assert not any("rounds.report_seconds" in warning for warning in seen)


def test_pair_counts_are_priced_and_said_to_be_disclosed(fedrec, ease_file):
    found = fedrec("check", ease_file, "--items", 1682, "--json").json
    # 1,792 rows have 1792 * 1791 / 2 = 1,604,736 pairs, in four parts of 401,184; then 1,792
    # counts and the metrics.
    values = 401_184 + 1792 + len(METRIC_NAMES)
    blocks = -(-values // 4095)
    (chosen,) = [entry for entry in found["sets"] if entry["chosen"]]
    assert chosen["message_bytes"] // blocks in range(50_000, 70_000)
    assert found["price"]["upload_bytes"] == chosen["message_bytes"]
    assert found["price"]["download_bytes"] // 4 - values in range(100)
    assert found["price"]["n_rounds"] == 6
    seen = " ".join(found["warnings"])
    assert "discloses to every client, exactly" in seen
    assert "This includes small counts" in seen
    assert "rounds.minimum_clients (now 3)" in seen
    out = fedrec("check", ease_file, "--items", 1682).out
    assert "upload" in out
    assert "This includes small counts" in out


def test_private_tables_are_priced_by_hand(tmp_path):
    settings = Settings.model_validate(
        {
            "algorithm": {"name": "fedrap", "dim": 32},
            "update": {"structure": "dense"},
            "protection": {"name": "none"},
            "output": {"runs": str(tmp_path / "runs")},
            "client": {"state": str(tmp_path / "state"), "memory_mib": 2048},
        }
    )
    # A row of 32 values for each of 3,706 items, the head's 32 and its bias, 4 bytes each.
    each = 4 * (3_706 * 32 + 32 + 1)
    found = tables_price(settings, 6_040, 3_706)
    assert found.facts["table_bytes"] == 6_040 * each
    assert found.facts["disk_bytes"] == 6_040 * each * 16 // 5
    assert [name for name, _ in tables_rows(found)] == ["private tables", "private tables on disk"]
    few = tables_price(settings, (2048 << 20) // each, 3_706)
    assert few.facts["disk_bytes"] == 0
    assert [name for name, _ in tables_rows(few)] == ["private tables"]
    assert list(tables_warnings(few)) == []


def test_what_each_party_needs_by_hand(fedrec, settings_file):
    asked = ("check", settings_file, "--clients", "4", "--sizing")
    found = fedrec(*asked, "--json").json
    up, down = found["price"]["upload_bytes"], found["price"]["download_bytes"]
    opened, rounds = found["price"]["authority_download_bytes"], found["price"]["n_rounds"]
    assert opened == 4 * up
    sizing = {name: found["sizing"][name] for name in ("coordinator", "authority", "client")}
    assert [(each["up_bytes"], each["down_bytes"]) for each in sizing.values()] == [
        (4 * down + opened, 4 * up), (down, opened), (up, down)
    ]  # fmt: skip
    disk = [each["disk_bytes"] for each in sizing.values()]
    tables = found["private"]["table_bytes"] // 4
    assert disk[0] == 2 * 10**6 + rounds * down + 5 * up + 1_000 * rounds * 4
    assert disk[1:] == [
        2 * 10**6 + 4 * down + 2 * up, 2 * 10**6 + 7 * down + up + tables * 16 // 5
    ]  # fmt: skip
    # 24 users are 6 a client, with a score for each of 30 items.
    work = 20 * 6 * 30 + 4 * tables
    assert sizing["client"]["memory_bytes"] == 430_000_000 + 10 * (up + down) + work
    out = fedrec(*asked).out
    assert "4 clients in each round, 6 users at each and 30 items" in out
    assert "nknown" not in out
    assert "All parameter sets" not in out
    # One party's data aren't divided.
    assert "24 users at each" in fedrec("check", settings_file, "--sizing").out


@pytest.mark.parametrize("protection", ["masks", "ckks", "paillier"])
def test_sizes_that_were_never_measured_are_unknown(fedrec, settings_file, protection):
    asked = ("check", settings_file, "--sizing", "--set", f"protection.name={protection}")
    sizing = fedrec(*asked, "--json").json["sizing"]
    assert all(
        each["memory_bytes"] is each["processor_seconds"] is None for each in sizing.values()
    )
    assert all(each["disk_bytes"] for each in sizing.values())
    out = fedrec(*asked).out
    assert out.count("unknown") == 6
    assert "only none and bfv were measured" in out


def test_a_coordinator_that_makes_models_by_hand():
    """At most three blocks of tables and four matrices of 943 x 943, and 3 to 6 s as measured."""
    plan = plan_of(algorithm={"name": "gpfedrec", "dim": 32}, protection={"name": "none"})
    found = price(plan, n_items=1_792, n_clients=943)
    assert found.facts["n_rows"] == 1_792
    coordinator, _, _ = sizes(plan, found, own_users=1, memory_mib=64)
    without = 110_000_000 + 86_000 * 943 + 80_000_000
    rule = 3 * 943 * 1_792 * 32 * 4 + 4 * 8 * 943**2
    assert coordinator.facts["memory_bytes"] == without + rule
    receiving = 943 * (0.01 + 0.01 * found.up_bytes / 1e6)
    assert 3 < coordinator.facts["processor_seconds"] - receiving < 6


def test_the_papers_protocol_keeps_twenty_sums_and_has_no_authority():
    plan = plan_of(rounds={"total": 80}, protection={"key_holder": "members"})
    found = price(plan, n_items=100, n_clients=4)
    coordinator, authority, _ = sizes(plan, found, own_users=10, memory_mib=64)
    rows = 82 * 4 * 1_000
    updates = 5 * found.up_bytes
    assert coordinator.facts["disk_bytes"] == 2 * 10**6 + 20 * found.down_bytes + updates + rows
    assert (authority.up_bytes, authority.down_bytes) == (0, 0)
