"""Tail at home at a client: what its service recommends, and what it must not."""

import json
from dataclasses import replace

import pytest
from client.serve.asking import ask
from world.plans import params
from world.silo import Silo

from fedrec.algorithms import ALGORITHMS
from fedrec.cli.main import main
from fedrec.errors import SettingsError
from fedrec.recommender import tail as local_tail
from fedrec_client.own_recommender import export_model, own_recommender
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import Gate
from fedrec_client.serve.users_apart import read_users_apart

pytestmark = pytest.mark.slow
BRIDGE, LOCAL, COMMON, CANARY = "i00", "i03", "i06", "i09"
RARE = [
    # Three users have both, so that the fourth may be recommended LOCAL.
    *((user, item) for user in ("u00", "u03", "u06") for item in (BRIDGE, LOCAL)),
    ("u09", BRIDGE),
    # One user has a rare pair. The other one has half of it.
    ("u12", COMMON),
    ("u12", CANARY),
    ("u15", COMMON),
]
PLAIN = '[data]\npath = "data.csv"\n[client]\nstate = "state"\ndevice = "cpu"\n'


def silo_of(folder, least, algorithm="fedmf"):
    silo = Silo(folder, algorithm, RARE)
    with silo.settings_file.open("a") as file:
        file.write(f"tail = true\ntail_minimum_users = {least}\n")
    silo.publish(3)
    return silo


def served(silo, text=lambda change: None):
    """Return a service whose tail counts, whatever the few validation items say."""

    def read(*asked):
        users, tail = read_users_apart(*asked)
        return users, replace(tail, weight=4.0)

    holder = ModelHolder(silo.settings, read_users=read, on_change=text)
    holder.look()
    assert holder.problem is None
    return RecommendationApi(holder, Gate())


def test_the_canary_stays_with_its_user(tmp_path):
    """Asked by every way, for every item: another user's rare pair doesn't show."""
    text = []
    application = served(silo_of(tmp_path, 3), lambda change: text.append(str(change)))
    of_user = ask(application, "/v1/recommend", query={"user": "u09", "n": 100}).ids
    assert LOCAL in of_user
    assert LOCAL in ask(application, "/v1/recommend", query={"history": [BRIDGE], "n": 100}).ids
    for query in ({"user": "u15"}, {"history": [COMMON, BRIDGE]}, {"user": "u15", "recent": "i01"}):
        ids = ask(application, "/v1/recommend", query=query | {"n": 100}).ids
        assert len(ids) > 20
        assert CANARY not in ids
        chosen = ask(application, "/v1/recommend", query=query | {"candidates": [CANARY]})
        assert chosen.ids == []
    for user in ("u00", "u12", "u23"):
        ids = ask(
            application, "/v1/recommend", query={"user": user, "n": 100, "exclude_seen": "false"}
        ).ids
        assert CANARY not in ids
    assert " (tail at home: weight 4 for " in text[-1]


def test_without_the_minimum_it_would_show(tmp_path):
    application = served(silo_of(tmp_path, 1))
    assert CANARY in ask(application, "/v1/recommend", query={"user": "u15", "n": 100}).ids
    history = {"history": [COMMON, BRIDGE], "n": 100}
    assert CANARY in ask(application, "/v1/recommend", query=history).ids


@pytest.mark.parametrize(
    "algorithm", params("fedmf", "ease", long=sorted(set(ALGORITHMS) - {"fedmf", "ease"}))
)
def test_other_items_keep_their_scores(tmp_path, monkeypatch, algorithm):
    silo = silo_of(tmp_path, 3, algorithm)
    monkeypatch.setattr(local_tail, "best_weight", lambda ranks, at: 2)
    own = own_recommender(silo.settings)
    assert own.tail.weight == 1.0
    silo.settings_file.write_text(PLAIN)
    plain = own_recommender(silo.settings)
    assert plain.tail is None
    for user in plain.user_ids:
        before = dict(zip(*plain.recommend(user, 100), strict=True))
        after = dict(zip(*own.recommend(user, 100), strict=True))
        assert {item: after[item] for item in before} == before
        assert len(after) >= len(before)
    assert LOCAL in own.recommend("u09", 100)[0]


def test_recommend_says_what_validation_chose(tmp_path, capsys):
    silo = silo_of(tmp_path, 3)
    with pytest.raises(SystemExit) as ended:
        main(["recommend", str(silo.settings_file), "--user", "u09", "--json"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    figures = own_recommender(silo.settings).tail
    assert json.loads(out)["tail"] == {
        "weight": figures.weight,
        "n_rows": figures.n_rows,
        "users": len(silo.users),
        "at": 10,
        "shared_ndcg": figures.shared_ndcg,
        "ndcg": figures.ndcg,
    }
    assert f"Tail at home: {figures}." in err
    assert figures.n_rows > 1


def test_what_is_exported_has_nothing_of_it(tmp_path):
    silo = silo_of(tmp_path, 1)
    export_model(silo.settings, tmp_path / "with")
    silo.settings_file.write_text(PLAIN)
    export_model(silo.settings, tmp_path / "without")
    for path in (tmp_path / "with").iterdir():
        assert path.read_bytes() == (tmp_path / "without" / path.name).read_bytes()


def test_too_many_users_are_refused(tmp_path, monkeypatch):
    silo = silo_of(tmp_path, 3)
    monkeypatch.setattr(local_tail, "MOST_USERS", 23)
    with pytest.raises(SettingsError, match=r"has 24 users.*limited to 23"):
        own_recommender(silo.settings)
