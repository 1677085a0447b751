"""Settings files: precedence, paths, and every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrec.errors import SettingsError
from fedrec.plan.agreement import plan_fingerprint
from fedrec.plan.schema import Plan
from fedrec.settings.explain import all_settings
from fedrec.settings.validation import PATHS, UNSET, load_settings, load_with_sources


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, **more: object) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, more, environ={})
    return caught.value.problems


def test_an_empty_file_gives_the_defaults(tmp_path):
    settings = load_settings(write(tmp_path, ""), environ={})
    assert plan_fingerprint(settings.plan) == plan_fingerprint(Plan())


def test_flag_before_environment_before_file_before_default(tmp_path):
    path = write(tmp_path, "[rounds]\ntotal = 1\nminimum_clients = 4\ndeadline_seconds = 9\n")
    environ = {"FEDREC_ROUNDS__TOTAL": "2", "FEDREC_ROUNDS__MINIMUM_CLIENTS": "5"}
    loaded = load_with_sources(path, {"rounds.total": 3}, environ)
    rounds = loaded.settings.rounds
    assert (rounds.total, rounds.minimum_clients, rounds.deadline_seconds) == (3, 5, 9.0)
    origins = {key.partition(".")[2]: origin for key, origin in loaded.origins.items()}
    assert str(origins["total"]) == "flag"
    assert str(origins["minimum_clients"]) == "environment FEDREC_ROUNDS__MINIMUM_CLIENTS"
    assert str(origins["deadline_seconds"]) == f"{path}:4"
    assert origins["recompute_limit"].kind == "default"


def test_unset_takes_away_what_file_and_environment_say(tmp_path):
    base = (
        '[update]\nstructure = "dense"\n'
        '[algorithm]\nname = "plgc"\n[algorithm.base]\nname = "fedmf"\n'
    )
    path = write(tmp_path, base + 'dim = 5\n[data]\nseparator = "tab"\n[rounds]\ntotal = 7\n')
    values = {"data.separator": UNSET, "rounds.total": UNSET, "algorithm.base.dim": UNSET}
    loaded = load_with_sources(path, values, {"FEDREC_ROUNDS__TOTAL": "9"})
    assert loaded.settings == load_settings(write(tmp_path, base), environ={})
    assert loaded.origins["data.separator"].kind == "default"
    assert "no.such" in problems_of(write(tmp_path, ""), **{"no.such": UNSET})[0]


def test_flags_and_variables_may_be_text(tmp_path):
    environ = {"FEDREC_DATA__STRICT": "true", "FEDREC_CACHE": "not a setting"}
    flags = {"update.clip": "0.5", "data.layout": None}
    settings = load_settings(write(tmp_path, ""), flags, environ)
    assert settings.data.strict is True
    assert settings.update.clip == 0.5


def test_an_integer_will_do_for_a_number_but_text_will_not(tmp_path):
    assert load_settings(write(tmp_path, "[update]\nclip = 2\n"), environ={}).update.clip == 2.0
    (problem,) = problems_of(write(tmp_path, '[rounds]\ntotal = "5"\n'))
    assert 'rounds.total = "5": expected an integer from 1 to 1000000' in problem


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[rounds]\ntotla = 5\n", "rounds.total"),
        ("[roundz]\ntotal = 5\n", "rounds.total"),
        ("[algorithm]\nratio = 0.5\n", "update.ratio"),
        ("total = 5\n", "rounds.total"),
        ("rounds.totl = 5\n", "rounds.total"),
        ("[client]\ncertficate = 'x'\n", "client.certificate"),
        ("[privacy]\nnoise = 1\n", "privacy.noise_multiplier"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(tmp_path, text, nearest):
    (problem,) = problems_of(write(tmp_path, text))
    assert f"The nearest is {nearest} (" in problem
    assert "Rename it, or remove the line." in problem


def test_a_key_of_another_algorithm_is_answered_with_one_of_that_name(tmp_path):
    (problem,) = problems_of(write(tmp_path, "[algorithm]\nrank = 5\n"))
    assert "fedmf has no such setting, only" in problem
    assert "Omit it, use update.rank, or change algorithm.name." in problem


def test_a_key_like_no_other_is_answered_with_what_there_is(tmp_path):
    unknown, strange = problems_of(write(tmp_path, "[output]\nqqq = 1\n[zzz]\nqqq = 2\n"))
    assert "[output] has runs." in unknown
    assert "Sections are federation, algorithm" in strange


def test_every_problem_is_told_at_once_in_the_order_of_the_file(tmp_path):
    text = "# first\n[update]\nrank = 0\n\n[rounds]\ntotla = 5\nminimum_clients = 1.5\n"
    path = write(tmp_path, text)
    environ = {"FEDREC_EVALUATION__AT": "many", "FEDREC_NO__SUCH": "1"}
    with pytest.raises(SettingsError, match="5 problems, nothing was started") as caught:
        load_settings(path, {}, environ)
    rank, total, clients, *elsewhere = caught.value.problems
    assert rank.startswith(f"{path}:3: update.rank = 0: expected an integer from 1 to 1024")
    assert total.startswith(f"{path}:6: rounds.totla = 5")
    assert clients.startswith(f"{path}:7: rounds.minimum_clients = 1.5: expected an integer")
    assert {problem.split(":")[0] for problem in elsewhere} == {
        "environment FEDREC_EVALUATION__AT",
        "environment FEDREC_NO__SUCH",
    }


def test_contradictions_are_told_with_their_line_and_beside_other_problems(tmp_path):
    path = write(tmp_path, "[update]\nrank = 64\n[rounds]\ntotla = 1\nminimum_clients = 1\n")
    rank, unknown, clients = problems_of(path)
    assert rank.startswith(f"{path}:2: update.rank is 64, but algorithm.dim is 32")
    assert "rounds.totla" in unknown
    assert clients.startswith(f"{path}:5: rounds.minimum_clients is 1, but under bfv")


def test_dotted_and_quoted_keys_and_inline_tables_have_lines(tmp_path):
    path = write(tmp_path, '\nrounds . total = 0\n[update]\n"rank" = 0\n[algorithm]\ndim = 0\n')
    assert [p.split(":")[1] for p in problems_of(path)] == ["2", "4", "6"]
    path = write(tmp_path, "\nupdate = { rank = 0 }\n")
    assert problems_of(path)[0].startswith(f"{path}:2: update.rank = 0")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_are_finite(tmp_path, value):
    (problem,) = problems_of(write(tmp_path, f"[rounds]\ndeadline_seconds = {value}\n"))
    assert f"rounds.deadline_seconds = {value}: expected a number above 0" in problem


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("[rounds]\ntotal =\n", 2, "total ="),
        ("[rounds\n", 1, "[rounds"),
        ("a = 1\na = 2", 2, "a"),
        (f"a = {'9' * 5000}", 1, "a = 999"),
    ],
)
def test_a_syntax_error_has_its_line(tmp_path, text, line, found):
    path = write(tmp_path, text)
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:{line}: invalid TOML: ")
    assert found in problem


@pytest.mark.parametrize("key", ["data.path", "data.encoding", "client.state"])
def test_a_zero_character_is_refused_before_it_reaches_the_system(tmp_path, key):
    (problem,) = problems_of(write(tmp_path, f'{key} = "a\\u0000b"\n'))
    assert problem.startswith(f"{tmp_path / 'run.toml'}:1: {key} has a zero character")


def test_an_unknown_home_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"data\.path is '~no-such-user/a\.csv', but that home"):
        load_settings(write(tmp_path, 'data.path = "~no-such-user/a.csv"\n'), environ={})


def test_a_section_is_a_table(tmp_path):
    for text in ("rounds = 5\n", "[[rounds]]\ntotal = 5\n"):
        (problem,) = problems_of(write(tmp_path, text))
        assert "rounds is a section. Expected [rounds]" in problem


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        load_settings(tmp_path / "none.toml")
    assert "fedrec init" in caught.value.remedy
    (tmp_path / "run.toml").write_bytes(b"# ok\n# \xff\n")
    with pytest.raises(SettingsError, match=r"run.toml:2 is not UTF-8"):
        load_settings(tmp_path / "run.toml")


def test_long_values_are_cut_in_messages(tmp_path):
    (problem,) = problems_of(write(tmp_path, f"[rounds]\ntotal = '{'x' * 5000}'\n"))
    assert len(problem) < 400


def test_paths_start_at_the_settings_file_but_those_of_flags_at_the_working_folder(tmp_path):
    path = write(tmp_path, "[data]\npath = 'a.csv'\n[client]\nstate = '/state'\n")
    environ = {"FEDREC_OUTPUT__RUNS": "here"}
    settings = load_settings(path, {"data.catalogue": "b.csv"}, environ)
    assert settings.data.path == str(tmp_path / "a.csv")
    assert settings.data.catalogue == "b.csv"
    assert settings.client.state == "/state"
    assert settings.output.runs == "here"
    assert settings.coordinator.epoch == str(tmp_path / "keys/epoch.json")
    assert settings.client.certificate is None


def test_a_path_is_written_as_short_as_it_can_be(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "one")
    text = "[data]\npath = '../../a.csv'\n"
    found = load_settings(write(tmp_path / "runs" / "one", text), environ={}).data.path
    assert found == str(tmp_path / "a.csv")
    behind_a_link = load_settings(tmp_path / "link" / "run.toml", environ={}).data.path
    assert behind_a_link == str(tmp_path / "link" / "../../a.csv"), "two folders up from its target"


def test_every_text_setting_of_a_machine_is_known_to_be_a_path_or_not():
    others = {
        "data.layout",
        "data.columns",
        "data.separator",
        "data.encoding",
        "data.quotes",
        "data.rating_column",
        "data.timestamp_format",
        "data.user_column",
        "data.item_column",
        "data.timestamp_column",
        "coordinator.host",
        "coordinator.metrics_address",
        "coordinator.page",
        "client.coordinator",
        "client.metrics_address",
        "client.device",
        "client.label",
        "client.ray_address",
        "parties.address",
    }
    texts = {
        setting.key
        for setting in all_settings().values()
        if not setting.in_plan and setting.annotation in (str, str | None)
    }
    assert texts == PATHS | others
    assert not {setting.key for setting in all_settings().values() if setting.in_plan} & PATHS


def test_only_what_was_set_counts_as_set(tmp_path):
    """A client's file need not repeat the plan; what it sets must be the federation's."""
    settings = load_settings(write(tmp_path, "[rounds]\ntotal = 7\n"), environ={})
    assert settings.rounds.model_fields_set == {"total"}
    assert settings.update.model_fields_set == set()


def test_the_environment_reaches_the_settings_inside_a_table(tmp_path):
    path = write(tmp_path, '[algorithm]\nname = "plgc"\n')
    assert all_settings()["algorithm.base"].environment == "FEDREC_ALGORITHM__BASE__NAME"
    environ = {"FEDREC_ALGORITHM__BASE__NAME": "pfedrec", "FEDREC_ALGORITHM__BASE__DIM": "8"}
    base = load_settings(path, {"update.structure": "dense"}, environ).algorithm.base
    assert (base.name, base.dim) == ("pfedrec", 8)
    with pytest.raises(SettingsError) as caught:
        load_settings(path, {}, {"FEDREC_UPDATE__RANK__MORE": "1"})
    assert "update.rank.more = " in caught.value.problems[0]


def test_a_contradiction_inside_a_table_names_the_line_of_the_table(tmp_path):
    text = '[update]\nstructure = "dense"\n[algorithm]\nname = "plgc"\n[algorithm.base]\n'
    path = write(tmp_path, text + 'name = "fedmf"\nbatch_size = 1\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environ={})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}:5: algorithm.base.batch_size is 1")
