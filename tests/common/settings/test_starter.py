"""The first settings file works as it is written."""

import re

import pytest

from fedrec.algorithms import ALGORITHMS
from fedrec.errors import SettingsError
from fedrec.plan.schema import users_with_room
from fedrec.settings.schema import Settings
from fedrec.settings.starter import TUNED, Starter
from fedrec.settings.validation import load_settings
from fedrec_lab.demo.demonstration import DemoOptions


@pytest.mark.parametrize("protection", ["bfv", "ckks", "paillier", "masks", "none"])
@pytest.mark.parametrize("n_clients", [0, 3, 7, 50, 51, 1000])
def test_it_can_be_loaded(tmp_path, protection, n_clients):
    path = tmp_path / "run.toml"
    path.write_text(Starter(protection=protection, n_clients=n_clients).text(), encoding="utf-8")
    settings = load_settings(path, environ={})
    assert settings.protection.name == protection
    assert settings.rounds.minimum_clients <= max(n_clients, 3)


@pytest.mark.parametrize("n_clients", [0, 3, 7, 80])
def test_an_algorithm_that_needs_every_client_waits_for_every_client(tmp_path, n_clients):
    path = tmp_path / "run.toml"
    starter = Starter(algorithm="ease", n_clients=n_clients, protection="none")
    path.write_text(starter.text(), encoding="utf-8")
    settings = load_settings(path, environ={})
    assert settings.rounds.minimum_clients == (n_clients or 3)
    assert settings.rounds.clients_per_round == 0
    assert settings.rounds.recompute_limit >= n_clients
    assert "clip" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("algorithm", ["fedals", "fedmf"])
@pytest.mark.parametrize(
    ("n_clients", "least"), [(3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 4), (9, 6), (12, 8)]
)
def test_over_whole_cells_a_round_can_lose_one(algorithm, n_clients, least):
    """Of one cell one may leave for good while three are left; of several the largest may be away:
    6 are 3 + 3, 7 are 3 + 4, 8 are 4 + 4, 9 are 3 + 3 + 3.
    """
    text = Starter(algorithm=algorithm, n_clients=n_clients, protection="bfv").text()
    assert f"\nminimum_clients = {least}\n" in text


def test_it_leaves_room_for_twice_the_users():
    assert [users_with_room(n) for n in (1, 2, 3, 512, 943, 1025)] == [2, 4, 8, 1024, 2048, 4096]
    assert "maximum_users = 2048\n" in Starter(n_users=943).text()


def test_paths_that_are_known_are_set_and_others_only_shown():
    text = Starter(data="data/a.csv").text()
    assert '\npath = "data/a.csv"\n' in text
    assert '\n# catalogue = ""\n' in text


def test_too_few_clients_for_encryption_are_refused():
    with pytest.raises(SettingsError, match="fewer than 3 clients is never opened"):
        Starter(n_clients=2)
    assert "minimum_clients = 1\n" in Starter(n_clients=1, protection="none").text()


@pytest.mark.parametrize("algorithm", sorted(TUNED))
def test_the_demo_and_the_first_settings_file_train_alike(tmp_path, algorithm):
    path = tmp_path / "run.toml"
    path.write_text(
        Starter(algorithm=algorithm, n_clients=3, protection="ckks").text(), encoding="utf-8"
    )
    first, demo = load_settings(path, environ={}).plan, DemoOptions(algorithm=algorithm).plan()
    tuned = TUNED[algorithm]
    assert first.algorithm == demo.algorithm == tuned.algorithm
    assert first.update.structure == demo.update.structure == tuned.update.structure
    assert first.update.clip == demo.update.clip == tuned.update.clip
    if tuned.update.structure != "dense":
        assert first.update.rank == demo.update.rank == tuned.update.rank
    assert first.rounds.total == demo.rounds.total == tuned.rounds.total
    assert first.federation.minimum_item_users == demo.federation.minimum_item_users
    assert first.evaluation == demo.evaluation


@pytest.mark.parametrize("algorithm", sorted(TUNED))
def test_python_and_init_begin_alike(tmp_path, algorithm):
    path = tmp_path / "run.toml"
    path.write_text(Starter(algorithm=algorithm).text(), encoding="utf-8")
    written, named = load_settings(path, environ={}), load_settings(algorithm=algorithm, environ={})
    assert named.plan.model_dump() == written.plan.model_dump()
    by_value = load_settings(values={"algorithm.name": algorithm}, environ={})
    by_environment = load_settings(environ={"FEDREC_ALGORITHM__NAME": algorithm})
    assert by_value == by_environment == named


def test_without_an_algorithm_python_takes_that_of_init(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(Starter().text(), encoding="utf-8")
    assert load_settings(environ={}).plan == load_settings(path, environ={}).plan


PROTECTED = [
    name
    for name, kind in ALGORITHMS.items()
    if "bfv" in (kind.about.supports.protections or ("bfv",))
]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - PROTECTED))
def test_going_without_protection_is_never_a_default(algorithm):
    with pytest.raises(SettingsError, match=r'protection\.name = "none"'):
        load_settings(algorithm=algorithm, environ={})
    assert load_settings(values={"protection.name": "none"}, algorithm=algorithm, environ={})


@pytest.mark.parametrize("algorithm", sorted(PROTECTED))
def test_an_algorithm_needs_no_further_setting(algorithm):
    settings = load_settings(algorithm=algorithm, environ={})
    assert settings.update.structure == {"fedmf": "colr"}.get(algorithm, "dense")
    written = Settings.model_validate({"algorithm": {"name": algorithm}})
    assert written.update.structure == settings.update.structure
    # A client does not insist on a default.
    assert "structure" not in written.update.model_fields_set


def test_the_environment_and_values_win_over_the_start():
    environ = {"FEDREC_ROUNDS__TOTAL": "3", "FEDREC_UPDATE__CLIP": "5"}
    found = load_settings(algorithm="fedals", values={"update.clip": 7}, environ=environ)
    assert (found.rounds.total, found.update.clip) == (3, 7.0)


def test_what_is_wrong_with_an_algorithm_is_said_in_words_of_python(tmp_path):
    with pytest.raises(SettingsError, match=r"algorithm is 'fedalz'.*fedals") as error:
        load_settings(algorithm="fedalz", environ={})
    assert "--" not in str(error.value)
    for arguments, message in (
        ({"algorithm": "fedals", "values": {"algorithm.name": "ease"}}, "Omit one of them"),
        ({"values": "rounds.total=5"}, "values={'rounds.total': 5}"),
        ({"values": {"rounds": {"total": 5}}}, "dotted keys such as rounds.total"),
        ({"path": "fedals"}, "pass algorithm='fedals'"),
    ):
        with pytest.raises(SettingsError, match=re.escape(message)):
            load_settings(**arguments, environ={})
    with pytest.raises(SettingsError, match="Omit algorithm or path"):
        load_settings(tmp_path / "run.toml", algorithm="fedals")
