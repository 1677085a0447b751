"""What `fedrec check` warns of, and what it says about who sees what."""

from __future__ import annotations

import pytest
from world.plans import plan_of

from fedrec.data import generate
from fedrec.data.writing import write_interactions
from fedrec.plan.schema import Plan
from fedrec.plan.settings_warnings import warnings_for
from fedrec.protection import ProtectionSettings

BY_CLIENT = {"compress": "client"}


def test_warnings():
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
        found = " ".join(warnings_for(plan_of(update=choice)))
        assert "depend on how users are grouped into clients" in found
    unused = plan_of(update=BY_CLIENT | {"subset": "client"})
    assert warnings_for(unused) == warnings_for(Plan())


def test_an_algorithm_that_works_under_no_protection_is_not_told_to_take_one():
    for name, advised in (("fedmf", True), ("gpfedrec", False)):
        plan = Plan.model_validate(
            {"algorithm": {"name": name}, "protection": {"name": "none"},
             "update": {"structure": "dense"}}
        )  # fmt: skip
        warnings = " ".join(warnings_for(plan))
        assert ('Use "bfv"' in warnings) is advised
        assert ("use it for experiments only" in warnings) is not advised


def test_what_indices_in_the_clear_would_leak_is_said():
    topk = plan_of(update={"structure": "topk"})
    warnings = [
        warning for warning in warnings_for(topk) if "fedrec audit --only indices" in warning
    ]
    assert len(warnings) == 1
    assert "the index of every kept value" in warnings[0]
    assert "fedrec sends no index" in warnings[0]
    assert not any("index" in warning for warning in warnings_for(Plan()))


def test_a_catalogue_with_too_many_pairs_is_warned_of_before_the_count(fedrec, ease_file):
    warned = fedrec("check", ease_file, "--items", 10_000, "--json").json["warnings"]
    warning = "10000 items: if enough users hold all of them, every client needs about 2.2 GiB"
    assert any(warning in text for text in warned)
    assert not any("is refused after the count" in text for text in warned)
    # 14,080 rows have 99,116,160 pairs; in four rounds those are 24,779,040 each.
    (many,) = [
        text
        for text in fedrec("check", ease_file, "--items", 14_000, "--json").json["warnings"]
        if "is refused after the count" in text
    ]
    assert "sum 24779040 of them: 99116160 bytes without encryption" in many
    assert "Set rounds.total = 6 or more" in many
    large = fedrec("check", ease_file, "--items", 20_000, "--set", "rounds.total=100", "--json")
    assert "ease takes at most 16384 rows" in " ".join(large.json["warnings"])


def test_exposed_clients_are_a_warning(fedrec, ease_file):
    plain = ("--set", "protection.name=none", "--set", "protection.preset=default")
    plain += ("--set", "protection.key_holder=members")
    warned = " ".join(fedrec("check", ease_file, *plain, "--json").json["warnings"])
    assert "It reads which pairs of items each client's users hold" in warned
    assert "--accept-exposure" in warned


def test_short_keys_and_slow_reveals_are_warned_of():
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


def test_masks_say_who_must_stay_and_what_the_steps_cost(fedrec, settings_file):
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
    (who,) = (line for line in three["warnings"] if "masks from a single update" in line)
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


def test_masks_say_what_keeps_four_bytes_a_value():
    """By hand: a word holds sums of size 2^31 - 1, and a user sends 2^20 at most by default."""

    def warning_of(**sections: dict[str, object]) -> str:
        plan = plan_of(protection={"name": "masks"}, **sections)
        return " ".join(line for line in warnings_for(plan) if "eight bytes" in line)

    default = warning_of()
    assert "Sums of 16384 users" in default and "update.fraction_bits = 20" in default
    # 16,384 is 2^14, and 2^14 x 2^17 would be 2^31.
    assert "update.fraction_bits = 16 or federation.maximum_users = 2047 would keep four" in default
    assert warning_of(federation={"maximum_users": 2047}) == ""
    border = warning_of(federation={"maximum_users": 2048})
    assert "update.fraction_bits = 19 or federation.maximum_users = 2047 would" in border
    assert warning_of(update={"fraction_bits": 16}) == ""
    many = warning_of(federation={"maximum_users": 2**28})
    assert "federation.maximum_users = 2047 would keep four" in many
    assert "or federation" not in many, "2^28 x 2^4 is 2^32: no grid is coarse enough"


@pytest.mark.parametrize(("name", "note"), [("ckks", 1), ("bfv", 0), ("paillier", 0)])
def test_what_a_sum_without_tags_rests_on_is_said(name, note):
    plan = plan_of(protection={"name": name, "key_holder": "authority"})
    assert (
        sum("all clients are assumed to be honest" in text for text in warnings_for(plan)) == note
    )


def test_a_disk_without_room_for_private_tables_is_warned_of(fedrec, tmp_path, monkeypatch):
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
    assert "private tables on disk" in outcome.out
    for setting in ("output.runs", "client.state"):
        assert f"warning: {setting}: private tables need up to" in outcome.out
    assert "raise client.memory_mib above" in outcome.out


class Free:
    """What is said of a disk."""

    def __init__(self, free: int) -> None:
        self.free = free


def test_more_directions_than_items_are_warned_of():
    plan = plan_of(algorithm={"name": "sketch", "dim": 64}, update={"structure": "dense"})
    (warning,) = (text for text in warnings_for(plan, n_items=900, n_held=50) if "`ease`" in text)
    assert "sends 1275 numbers, and sketch 2 times 3200" in warning
    assert not any("`ease`" in text for text in warnings_for(plan, n_items=900, n_held=64))
