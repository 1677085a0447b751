"""`fedrec check` resolves, explains and prices."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedrec.cli.pricing import parameter_sets, price, warnings_for
from fedrec.cli.privacy_price import privacy_price, privacy_warnings
from fedrec.cli.private_pricing import private_price
from fedrec.config.combinations import check_plan
from fedrec.config.explain import all_settings, explain
from fedrec.config.layout import Layout, vector_spec
from fedrec.config.schema import Plan, ProtectionSettings, Settings
from fedrec.data import generate
from fedrec.data.writing import write_interactions
from fedrec.evaluation.metrics import METRIC_NAMES
from fedrec.protection import PROTECTIONS
from fedrec.protection.encryption_parameters import CKKS_PRESETS

from .conftest import Fedrec

KEPT = ("--set", "federation.minimum_item_users=2")
"""24 users hold no item ten times, so that a simulation would be refused."""

BY_CLIENT = {"compress": "client"}


@pytest.fixture
def settings_file(fedrec: Fedrec, tmp_path: Path, interactions_file: Path) -> Path:
    path = tmp_path / "run.toml"
    start = ("init", path, "--algorithm", "fedmf", "--data", interactions_file, "--clients", 3)
    assert fedrec(*start).code == 0
    return path


def test_the_keys_of_its_json_are_stable(
    fedrec: Fedrec, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREC_EVALUATION__AT", "5")
    outcome = fedrec("check", settings_file, "--json", "--set", "rounds.total=7", *KEPT)
    found = outcome.json
    assert outcome.err == ""
    assert set(found) == {
        "path",
        "plan_fingerprint",
        "settings",
        "sources",
        "users",
        "price",
        "sets",
        "privacy",
        "private",
        "warnings",
        "refusals",
    }
    assert set(found["sources"]) == set(all_settings("fedmf", "bfv"))
    assert found["sources"]["rounds.total"]["kind"] == "flag"
    assert found["sources"]["evaluation.at"]["where"] == "environment FEDREC_EVALUATION__AT"
    assert found["settings"]["rounds"]["total"] == 7
    assert set(found["price"]) == {
        "authority_download_bytes",
        "dense_paper_bytes",
        "dense_plain_bytes",
        "download_bytes",
        "is_encrypted",
        "n_clients",
        "n_items",
        "n_rounds",
        "n_rows",
        "count_download_bytes",
        "count_upload_bytes",
        "expected",
        "masks",
        "opening",
        "paper_link_minutes",
        "paper_numbers",
        "protection",
        "total_bytes",
        "upload_bytes",
    }
    assert found["price"]["n_items"] == 30


def test_people_see_where_values_come_from_and_what_they_cost(
    fedrec: Fedrec, settings_file: Path
) -> None:
    out = fedrec("check", settings_file).out
    assert "protection.name" in out
    assert "run.toml:" in out
    for words in ("upload", "security", "128 bits", "whole run", "The key authority alone holds"):
        assert words in out


def test_every_parameter_set_is_listed_and_the_chosen_one_marked(
    fedrec: Fedrec, settings_file: Path
) -> None:
    sets = fedrec("check", settings_file, "--json").json["sets"]
    known = {(name, preset) for name, kind in PROTECTIONS.items() for preset in kind.presets}
    assert {(entry["protection"], entry["preset"]) for entry in sets} == known
    (chosen,) = (entry for entry in sets if entry["chosen"])
    assert (chosen["protection"], chosen["preset"]) == ("bfv", "default")
    price = fedrec("check", settings_file, "--json").json["price"]
    assert chosen["message_bytes"] == price["upload_bytes"]
    for entry in sets:
        if entry["key_bits"]:
            # NIST SP 800-57 part 1, table 2; the default's 128 bits come first.
            strength = {3072: 128, 2048: 112}[entry["key_bits"]]
            assert (entry["protection"], entry["security_bits"]) == ("paillier", strength)
        elif entry["modulus_bits"]:
            assert entry["security_bits"] >= 128
            assert entry["modulus_bits"] <= entry["most_modulus_bits"]
            assert entry["headroom_bits"] >= 6
        else:
            assert entry["protection"] in ("none", "masks")
    out = fedrec("check", settings_file, "--set", "protection.preset=wide").out
    lines = out.partition("All parameter sets")[2].splitlines()
    (marked,) = (line for line in lines if line.startswith("*"))
    assert "bfv, wide" in marked
    assert "of at most 218 bits" in marked


def test_the_margin_by_hand() -> None:
    found = {(s.protection, s.preset): s for s in parameter_sets(Plan(), 100)}
    lean = found["ckks", "lean"]
    assert (lean.modulus_bits, lean.most_modulus_bits, lean.security_bits) == (109, 109, 128)
    paper = found["ckks", "paper"]
    assert (paper.modulus_bits, paper.most_modulus_bits, paper.security_bits) == (200, 438, 256)
    assert lean.bytes_per_value == lean.message_bytes / (256 * 5 + len(METRIC_NAMES))


def test_a_set_that_cannot_carry_the_sums_says_so(
    fedrec: Fedrec, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpless = replace(CKKS_PRESETS["paper"], choices=())
    monkeypatch.setitem(CKKS_PRESETS, "paper", helpless)
    sets = fedrec("check", settings_file, "--json").json["sets"]
    (broken,) = (entry for entry in sets if entry["problem"])
    assert (broken["protection"], broken["preset"]) == ("ckks", "paper")
    assert broken["message_bytes"] == 0
    lines = fedrec("check", settings_file).out.splitlines()
    (line,) = (row for row in lines if "ckks, paper" in row and "cannot" in row)
    assert "No parameters of ckks/paper keep the sum of 64 messages exact" in line


def test_users_are_counted_where_the_data_is(fedrec: Fedrec, settings_file: Path) -> None:
    found = fedrec("check", settings_file, "--json").json
    assert found["users"] == 24
    assert not [text for text in found["warnings"] if "maximum_users" in text]
    assert "24 in data.path" in fedrec("check", settings_file).out
    small = fedrec("check", settings_file, "--json", "--set", "federation.maximum_users=20").json
    (warning,) = (text for text in small["warnings"] if "maximum_users" in text)
    assert "maximum_users = 20, but data.path has 24 users" in warning
    assert "Set it to 64" in warning
    few = ("--set", "federation.maximum_users=20", "--set", "data.minimum_interactions=1000")
    nobody = fedrec("check", settings_file, "--json", *few)
    assert nobody.code == 2
    assert "none reach 1000 interactions" in nobody.json["message"]


def test_data_on_another_machine_is_a_warning(
    fedrec: Fedrec, settings_file: Path, interactions_file: Path
) -> None:
    interactions_file.unlink()
    found = fedrec("check", settings_file, "--json")
    assert found.code == 0
    assert found.json["users"] is None
    (warning,) = (text for text in found.json["warnings"] if "not on this machine" in text)
    assert "data.path" in warning


def test_without_data_there_are_settings_but_no_price(fedrec: Fedrec, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("")
    assert fedrec("check", path, "--json").json["price"] is None
    assert "give --items N" in fedrec("check", path).out
    assert fedrec("check", path, "--items", 50, "--json").json["price"]["n_items"] == 50


def test_items_that_contradict_the_catalogue_are_refused(
    fedrec: Fedrec, settings_file: Path
) -> None:
    outcome = fedrec("check", settings_file, "--items", 31)
    assert outcome.code == 2
    assert "--items says 31, but data.catalogue has 30" in outcome.err


def test_explain(fedrec: Fedrec, settings_file: Path) -> None:
    assert "Training rounds to publish." in fedrec("check", "--explain", "rounds.total").out
    assert len(fedrec("check", "--explain", "--json").json["settings"]) == len(explain())
    unknown = fedrec("check", "--explain", "rounds.totl")
    assert unknown.code == 2
    assert "The nearest setting is rounds.total." in unknown.err


def test_a_file_must_be_named(fedrec: Fedrec) -> None:
    assert "fedrec init" in fedrec("check").err


def test_the_price_where_members_decrypt_by_hand() -> None:
    shared = {"key_holder": "members"}
    plan = Plan.model_validate({"rounds": {"total": 8}, "protection": shared})
    found = price(plan, n_items=100, n_clients=4)
    # 100 items travel as 256 rows at most, of rank 4 and a count each, and 45 metric sums.
    spec = vector_spec(plan, 100)
    assert spec.length == 256 * 5 + 45
    planned = PROTECTIONS["bfv"].plan(spec)
    upload = planned.message_bytes
    assert (found.n_rows, found.upload_bytes, found.expected) == (256, upload, None)
    # The count round has 100 counts and 45 sums: one block.
    counting = upload - (planned.n_blocks - 1) * planned.frame_bytes
    assert found.count_upload_bytes == counting
    assert found.n_rounds == 10
    assert found.dense_plain_bytes == 4 * 100 * 32
    # Every client fetches the ciphertext sum, which is as long as an update.
    assert (found.download_bytes, found.authority_download_bytes) == (upload, 0)
    assert found.total_bytes == 4 * 2 * counting + 9 * 4 * 2 * upload


def test_the_price_with_a_key_authority_by_hand() -> None:
    plan = Plan.model_validate({"rounds": {"total": 8}})
    found = price(plan, n_items=100, n_clients=4)
    upload = PROTECTIONS["bfv"].plan(vector_spec(plan, 100)).message_bytes
    assert found.authority_download_bytes == 4 * upload
    assert found.download_bytes < upload / 2, "the sum is sealed, not encrypted"
    per_round = 4 * (upload + found.download_bytes) + 4 * upload
    counting = found.count_upload_bytes
    counted = 4 * (counting + found.count_download_bytes) + 4 * counting
    assert found.total_bytes == counted + 9 * per_round


def test_what_is_expected_follows_from_the_items_that_enough_users_hold() -> None:
    plan = Plan.model_validate(
        {
            "algorithm": {"name": "fedals"},
            "update": {"structure": "dense"},
            "rounds": {"total": 8},
        }
    )
    found = price(plan, n_items=105_000, n_clients=4, n_active=4_400)
    alone = price(plan, n_items=4_400, n_clients=4)
    assert found.expected is not None
    assert (found.expected.n_active, found.expected.n_rows) == (4_400, 4_608)
    assert found.n_rows == 105_216
    assert found.expected.upload_bytes < found.upload_bytes / 20
    assert found.expected.upload_bytes == alone.upload_bytes
    assert found.expected.total_bytes <= 1.3 * alone.total_bytes


def test_ease_is_priced_for_what_it_can_take_of_a_large_catalogue() -> None:
    plan = Plan.model_validate(
        {
            "algorithm": {"name": "ease"},
            "update": {"structure": "dense"},
            "rounds": {"total": 10},
        }
    )
    found = price(plan, n_items=17_632, n_clients=4, n_active=1_530)
    assert found.expected is not None
    # 1,536 rows have 1,178,880 pairs, a tenth of which travels in a round.
    spec = Layout.of(plan, 1_536).vector_spec
    assert spec.segments[0].length == 117_888
    assert found.expected.upload_bytes < found.upload_bytes / 50


def test_under_noise_all_rows_travel_whatever_is_held() -> None:
    plan = Plan.model_validate(
        {
            "algorithm": {"name": "fedmf"},
            "privacy": {"mechanism": "gaussian"},
            "rounds": {"total": 8, "minimum_clients": 4},
        }
    )
    found = price(plan, n_items=1_000, n_clients=4, n_active=10)
    assert (found.n_rows, found.expected) == (1_000, None)


def test_without_encryption_nobody_reveals() -> None:
    plan = Plan.model_validate({"protection": {"name": "none"}})
    found = price(plan, n_items=100)
    assert found.authority_download_bytes == 0
    assert found.n_clients == plan.rounds.minimum_clients
    assert found.upload_bytes == found.download_bytes


def test_warnings() -> None:
    settings = {
        "protection": {"name": "none"},
        "evaluation": {"protocol": "paper"},
        "federation": {"minimum_item_users": 1},
    }
    found = " ".join(warnings_for(Plan.model_validate(settings)))
    assert "reads every client's update" in found
    assert "leaks the held-out items" in found
    # As docs/explanation/evaluation.md measured it.
    assert "HR@10 .96 and NDCG@10 .80" in found
    assert "minimum_item_users = 1" in found
    assert "2 must collude" in " ".join(warnings_for(Plan()))
    for choice in ({"structure": "scolr", "subset": "client"}, {"structure": "svd"} | BY_CLIENT):
        found = " ".join(warnings_for(Plan.model_validate({"update": choice})))
        assert "depend on how users are grouped into clients" in found
    unused = Plan.model_validate({"update": BY_CLIENT | {"subset": "client"}})
    assert warnings_for(unused) == warnings_for(Plan())


def test_the_papers_sizes_and_its_link(fedrec: Fedrec, tmp_path: Path) -> None:
    choices = {
        "algorithm": {"dim": 64},
        "update": {"structure": "dense"},
        "rounds": {"total": 1000},
    }
    found = price(Plan.model_validate(choices), n_items=3706)
    assert found.paper_link_minutes == pytest.approx(80.43, abs=0.005)
    assert found.paper_numbers is not None
    assert found.paper_numbers.upload == 3706 * 64
    solved = {"algorithm": {"name": "fedals"}, "update": {"structure": "dense"}}
    other = price(Plan.model_validate(solved), n_items=50)
    assert (other.paper_numbers, other.paper_link_minutes) == (None, None)
    path = tmp_path / "run.toml"
    path.write_text('[algorithm]\ndim = 64\n[update]\nstructure = "topk"\nratio = 0.25\n')
    out = fedrec("check", path, "--items", 3706, "--set", "rounds.total=1000").out
    assert "time by the paper's link model" in out
    assert "40.21 min" in out
    assert "118592 numbers up" in out


@pytest.mark.parametrize("preset", ["default", "wide"])
def test_noisy_values_travel_whole(preset: str) -> None:
    """Sums of limbs tell more than the sum that shares of noise cover."""

    def limbs(privacy: dict[str, str]) -> tuple[int, ...]:
        protection = {"name": "bfv", "preset": preset}
        plan = Plan.model_validate({"protection": protection, "privacy": privacy})
        return PROTECTIONS["bfv"].plan(vector_spec(plan, 1), preset=preset).limbs

    assert limbs({"mechanism": "gaussian"}) == (1, 1, 1)
    # A whole client's noise is enough in every message, however its values travel.
    assert (limbs({"mechanism": "laplace"})[0] > 1) == (preset == "default")


@pytest.mark.parametrize("preset", ["lean", "paper"])
def test_noise_that_would_have_to_be_split_is_refused(preset: str) -> None:
    """Slots of these sets take no FedMF sum of 20 fractional bits whole."""
    sections = {"protection": {"name": "ckks", "preset": preset}}
    assert check_plan(Plan.model_validate(sections)) == []
    noisy = Plan.model_validate(sections | {"privacy": {"mechanism": "gaussian"}})
    (sentence,) = check_plan(noisy)
    assert f"ckks/{preset} can carry the sum" in sentence
    assert "splitting noisy values into limbs" in sentence


def test_what_indices_in_the_clear_would_leak_is_said() -> None:
    topk = Plan.model_validate({"update": {"structure": "topk"}})
    told = [warning for warning in warnings_for(topk) if "fedrec audit indices" in warning]
    assert len(told) == 1
    assert "the index of every kept value" in told[0]
    assert "fedrec sends no index" in told[0]
    assert not any("index" in warning for warning in warnings_for(Plan()))


def paper_topk(**rounds: int) -> Plan:
    """The CoLR paper's encrypted Top-K on MovieLens 100K: 841 of 1682 x 32 values.

    Its clients share the key, as the paper's do.
    """
    scheme = {"name": "paillier", "preset": "single-3072", "key_holder": "members"}
    return Plan.model_validate(
        {
            "federation": {"maximum_users": 943, "minimum_item_users": 1},
            "algorithm": {"name": "fedmf", "dim": 32},
            "update": {"structure": "topk", "ratio": 1 / 64, "indices": "clear"},
            "protection": scheme,
            "rounds": rounds,
        }
    )


def test_the_papers_encrypted_topk_is_priced() -> None:
    found = price(paper_topk(), n_items=1682, n_clients=8)
    # ceil(1682 x 32 / 64) entries of 768 + 4 bytes, and 1792 counts of 10 bits with 44 metrics in
    # blocks of 3072 - 1 - 64 bits.
    assert 841 * 772 < found.upload_bytes < 841 * 772 + 10 * 768
    assert found.upload_bytes <= 0.75 * 2**20
    assert found.opening is not None
    places = 1792 * 32
    assert (found.opening.entries, found.opening.n_places) == (841, places)
    assert found.opening.expected_entries == math.ceil(places * (1 - (1 - 841 / places) ** 8))
    assert found.opening.most_entries == 8 * 841
    assert found.opening.report_seconds == found.opening.seconds > 6000 * 0.03
    hidden = paper_topk().model_dump()
    hidden["update"]["indices"] = "hidden"
    assert price(Plan.model_validate(hidden), n_items=1682, n_clients=8).opening is None


def test_943_clients_of_one_user_are_priced() -> None:
    found = price(paper_topk(clients_per_round=943), n_items=1682, n_clients=943)
    assert found.opening is not None
    assert found.opening.expected_entries == found.opening.most_entries == 1792 * 32
    # Every client fetches the sum: every place once, and its index.
    assert found.download_bytes == found.opening.sum_bytes
    assert 0 < found.download_bytes - 1792 * 32 * 772 < 10 * 768 + 44
    told = warnings_for(paper_topk(), n_items=1682)
    assert any("indices are not" in warning and "audit indices" in warning for warning in told)
    assert any("--accept-exposure" in warning for warning in told)
    assert not any("rounds.report_seconds" in warning for warning in told)


@pytest.fixture
def ease_file(fedrec: Fedrec, tmp_path: Path) -> Path:
    path = tmp_path / "ease.toml"
    assert fedrec("init", path, "--algorithm", "ease", "--clients", 5).code == 0
    return path


def test_pair_counts_are_priced_and_said_to_be_disclosed(fedrec: Fedrec, ease_file: Path) -> None:
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
    told = " ".join(found["warnings"])
    assert "discloses to every client, exactly" in told
    assert "Small pair counts are disclosed as such" in told
    assert "rounds.minimum_clients (now 3)" in told
    out = fedrec("check", ease_file, "--items", 1682).out
    assert "upload" in out
    assert "Small pair counts are disclosed as such" in out


def test_a_catalogue_with_too_many_pairs_is_warned_of_before_the_count(
    fedrec: Fedrec, ease_file: Path
) -> None:
    warned = fedrec("check", ease_file, "--items", 10_000, "--json").json["warnings"]
    told = "10000 items: if enough users hold all of them, every client needs about 2.2 GiB"
    assert any(told in text for text in warned)
    assert not any("is refused after the count" in text for text in warned)
    # 14,080 rows have 99,116,160 pairs; in four rounds those are 24,779,040 each.
    (many,) = [
        text
        for text in fedrec("check", ease_file, "--items", 14_000, "--json").json["warnings"]
        if "is refused after the count" in text
    ]
    assert "sum 24779040 of them, 99116160 bytes without encryption" in many
    assert "Set rounds.total = 6 or more" in many
    large = fedrec("check", ease_file, "--items", 20_000, "--set", "rounds.total=100", "--json")
    assert "ease takes at most 16384 rows" in " ".join(large.json["warnings"])


def test_exposed_clients_are_a_warning(fedrec: Fedrec, ease_file: Path) -> None:
    plain = ("--set", "protection.name=none", "--set", "protection.preset=default")
    plain += ("--set", "protection.key_holder=members")
    warned = " ".join(fedrec("check", ease_file, *plain, "--json").json["warnings"])
    assert "It reads which pairs of items each client's users hold" in warned
    assert "--accept-exposure" in warned


def test_short_keys_and_slow_reveals_are_warned_of() -> None:
    def warned(preset: str, n_items: int) -> list[str]:
        protection = ProtectionSettings(name="paillier", preset=preset, key_holder="members")
        plan = Plan(protection=protection)
        return [
            text for text in warnings_for(plan, 0, n_items) if "key" in text or "decrypts" in text
        ]

    shared = 'protection.key_holder = "members", the papers\' protocol'
    assert all(text.startswith(shared) for text in warned("packed-3072", 1000))
    (weak,) = (text for text in warned("packed-2048", 1000) if not text.startswith(shared))
    assert "112 bits of security" in weak and '"packed-3072"' in weak
    (slow,) = (text for text in warned("single-3072", 1000) if not text.startswith(shared))
    # 1000 items travel as 1,024 rows of rank 4, a count each, and 45 metrics.
    assert "decrypts 5165 ciphertexts" in slow and "report_seconds is 30" in slow


def test_the_key_authority_is_explained(fedrec: Fedrec, settings_file: Path) -> None:
    asked = ("check", settings_file, "--set", "protection.key_holder=authority")
    bfv = fedrec(*asked, "--set", "protection.name=bfv", "--clients", "5", "--json").json
    warned = " ".join(bfv["warnings"])
    assert "The key authority alone holds the secret key" in warned
    assert "Every closed round waits for" in warned
    assert "same secret key" not in warned
    # It fetches all five updates.
    price = bfv["price"]
    assert price["authority_download_bytes"] == 5 * price["protection"]["message_bytes"]
    members = ("--set", "protection.key_holder=members")
    shared = " ".join(fedrec("check", settings_file, *members, "--json").json["warnings"])
    assert "honest but curious" in shared and "may differ by one client's update" in shared
    masked = " ".join(fedrec(*asked, "--set", "protection.name=masks", "--json").json["warnings"])
    assert "key authority alone" not in masked and "same secret key" not in masked
    told = fedrec("check", "--explain", "protection.key_holder").out
    assert "members" in told and "authority" in told


def test_masks_say_who_must_stay_and_what_the_steps_cost(
    fedrec: Fedrec, settings_file: Path
) -> None:
    members = ("--set", "protection.key_holder=members")
    masked = ("check", settings_file, "--set", "protection.name=masks", *members, "--json")
    three = fedrec(*masked, "--clients", "3").json
    found = three["price"]["masks"]
    # Below 32 clients all others are neighbours, and floor(2 n / 3) + 1 shares are needed.
    assert (found["n_neighbours"], found["threshold"], found["may_drop_out"]) == (2, 3, 0)
    # 160 bytes of keys, 2 x 84 sealed, 64 of a signature, 3 x 35 of an answer.
    assert found["up_bytes"] == 160 + 2 * 84 + 64 + 3 * 35
    # 3 x 192 of keys, 2 x 84 sealed, 2 x 1 of bits, 3 x 66 of signatures.
    assert found["down_bytes"] == 3 * 192 + 2 * 84 + 2 + 3 * 66
    assert any("a single drop-out abandons the round" in line for line in three["warnings"])
    # Three shares of three, one of which the client keeps: its two neighbours have too few.
    (who,) = (line for line in three["warnings"] if "taken off a single update" in line)
    assert "that takes 3 shares of its client's secrets, and the 2 others hold 2" in who
    assert "neighbours collude" not in who
    four = fedrec(*masked, "--clients", "4").json["warnings"]
    assert any("3 of its client's 3 neighbours collude" in line for line in four)
    many = fedrec(*masked, "--clients", "1000").json
    found = many["price"]["masks"]
    assert (found["n_neighbours"], found["threshold"], found["may_drop_out"]) == (114, 78, 100)
    assert not any("a single drop-out" in line for line in many["warnings"])
    text = fedrec(*masked[:-1], "--clients", "3").out
    assert "neighbours" in text and "X25519, AES-256" in text


def test_masks_say_what_keeps_four_bytes_a_value() -> None:
    """By hand: a word holds sums of size 2^31 - 1, and a user sends 2^20 at most by default."""

    def told(**sections: dict[str, object]) -> str:
        plan = Plan.model_validate({"protection": {"name": "masks"}, **sections})
        return " ".join(line for line in warnings_for(plan) if "eight bytes" in line)

    default = told()
    assert "Sums of 16384 users" in default and "update.fraction_bits = 20" in default
    # 16,384 is 2^14, and 2^14 x 2^17 would be 2^31.
    assert "update.fraction_bits = 16 or federation.maximum_users = 2047 would keep four" in default
    assert told(federation={"maximum_users": 2047}) == ""
    border = told(federation={"maximum_users": 2048})
    assert "update.fraction_bits = 19 or federation.maximum_users = 2047 would" in border
    assert told(update={"fraction_bits": 16}) == ""
    many = told(federation={"maximum_users": 2**28})
    assert "federation.maximum_users = 2047 would keep four" in many
    assert "or federation" not in many, "2^28 x 2^4 is 2^32: no grid is coarse enough"


@pytest.mark.parametrize(("name", "said"), [("ckks", 1), ("bfv", 0), ("paillier", 0)])
def test_what_a_sum_without_tags_rests_on_is_said(name: str, said: int) -> None:
    plan = Plan.model_validate({"protection": {"name": name, "key_holder": "authority"}})
    assert sum("all clients are taken to be honest" in text for text in warnings_for(plan)) == said


def test_privacy_is_priced(fedrec: Fedrec, settings_file: Path) -> None:
    """z = 4 and five rounds: epsilon is 2.2581 by dp-accounting; the noise is four clips."""
    asked = (
        "privacy.mechanism=gaussian",
        "privacy.noise_multiplier=4",
        "privacy.epsilon=2.4",
        "privacy.rounds_per_user=0",
        "privacy.clip=0.5",
        "privacy.expected_users=10",
        "rounds.total=9",
        "algorithm.name=fedmf",
        "protection.name=bfv",
        "protection.key_holder=authority",
    )
    values = [word for value in asked for word in ("--set", value)]
    outcome = fedrec("check", settings_file, "--json", *values)
    found = outcome.json["privacy"]
    assert found["opens_updates"] is False
    assert found["rounds_allowed"] == found["rounds_per_user"] == 5
    assert found["epsilon"] == pytest.approx(2.2581, rel=0.01)
    # Of three clients one is taken to collude; without it the noise is that of all three.
    assert found["epsilon_with_one_client"] == pytest.approx(2.2581, rel=0.01)
    assert found["epsilon_coordinator"] == pytest.approx(1.8005, rel=0.01)
    assert found["deviation"] == pytest.approx(2.0, rel=1e-4)
    assert found["deviation_of_mean"] == pytest.approx(0.2, rel=1e-4)
    assert any("Of 9 training rounds the budget pays for 5" in w for w in outcome.json["warnings"])
    told = fedrec("check", settings_file, *values).out
    assert "What sums hide of a single user" in told and "No amplification" in told
    assert "against the coordinator" in told and "and one client with it" in told


NOISY = {"mechanism": "gaussian", "noise_multiplier": 4.0, "rounds_per_user": 5, "clip": 0.5}


@pytest.mark.parametrize(
    ("name", "key_holder", "opened"),
    [
        ("bfv", "authority", False),
        ("masks", "members", False),
        ("bfv", "members", True),
        ("ckks", "members", True),
        ("ckks", "authority", True),
    ],
)
def test_a_client_that_opens_single_updates_meets_one_share(
    name: str, key_holder: str, opened: bool
) -> None:
    """Two of three shares make z = 4, hence each is 4 / sqrt(2); all three make 4 sqrt(3 / 2).

    The epsilons of five sums are dp-accounting's (PLD, Gaussian events, delta 1e-5).
    """
    plan = Plan.model_validate(
        {
            "protection": {"name": name, "key_holder": key_holder},
            "privacy": NOISY,
            # A grid on which ckks takes noisy values whole.
            "update": {"fraction_bits": 10},
            "federation": {"maximum_users": 64},
        }
    )
    assert check_plan(plan) == []
    found = privacy_price(plan, 50)
    assert found is not None and found.opens_updates is opened
    assert found.epsilon == pytest.approx(2.2581, rel=0.01)
    assert found.epsilon_coordinator == pytest.approx(1.8005, rel=0.01)
    assert found.epsilon_with_one_client == pytest.approx(3.3414 if opened else 2.2581, rel=0.01)
    assert any("opens single updates" in text for text in privacy_warnings(plan, 0)) is opened
    rows = dict(found.rows())
    assert ("which they can open" in rows["and one client with it"]) is opened


def test_whole_noise_of_each_client_needs_no_other() -> None:
    privacy = {"mechanism": "laplace", "rounds_per_user": 5}
    protection = {"name": "bfv", "key_holder": "members"}
    plan = Plan.model_validate({"protection": protection, "privacy": privacy})
    found = privacy_price(plan, 50)
    assert found is not None and found.opens_updates
    assert found.epsilon_coordinator == found.epsilon_with_one_client == found.epsilon
    assert not any("opens single updates" in text for text in privacy_warnings(plan, 0))


def test_no_privacy_is_said(fedrec: Fedrec, settings_file: Path) -> None:
    outcome = fedrec("check", settings_file)
    assert "No differential privacy" in outcome.out
    assert fedrec("check", settings_file, "--json").json["privacy"] is None


def test_private_tables_are_priced_by_hand(tmp_path: Path) -> None:
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
    found = private_price(settings, 6_040, 3_706)
    assert found.table_bytes == 6_040 * each
    assert found.disk_bytes == 6_040 * each * 16 // 5
    assert [name for name, _ in found.rows()] == ["private tables", "they lie in files"]
    few = private_price(settings, (2048 << 20) // each, 3_706)
    assert few.disk_bytes == 0
    assert [name for name, _ in few.rows()] == ["private tables"]
    assert list(few.warnings()) == []


def test_a_disk_without_room_for_private_tables_is_warned_of(
    fedrec: Fedrec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 240 x 100 rows of 1,024 values are 98 MB.
    data = generate(n_users=240, n_items=100, n_clusters=3, interactions_per_user=8, seed=3)
    interactions_file = tmp_path / "interactions.csv"
    write_interactions(interactions_file, data.interactions)
    monkeypatch.setattr("fedrec.model.block_folder.shutil.disk_usage", lambda _: Free(1 << 20))
    path = tmp_path / "run.toml"
    path.write_text(
        f'[data]\npath = "{interactions_file}"\n[algorithm]\nname = "fedrap"\ndim = 1024\n'
        '[update]\nstructure = "dense"\n[client]\nmemory_mib = 64\n'
        "[federation]\nmaximum_users = 1024\n"
    )
    outcome = fedrec("check", path)
    assert outcome.code == 1
    assert "error [storage]" in outcome.err
    assert "they lie in files" in outcome.out
    for setting in ("output.runs", "client.state"):
        assert f"warning: {setting}: private tables take up to" in outcome.out
    assert "raise client.memory_mib above" in outcome.out


class Free:
    """What is said of a disk."""

    def __init__(self, free: int) -> None:
        self.free = free
