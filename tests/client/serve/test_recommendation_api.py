"""What is asked of the application, and what it refuses."""

import json

import numpy as np
import pytest
from client.serve.asking import OWN, ask, holder_of
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from fedrec.data import Catalogue
from fedrec.model.state import PrivateState
from fedrec.recommender import Recommender
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import MOST_BODY_BYTES, Gate


def bits(answer):
    scores = [item["score"] for item in answer.json["items"]]
    return np.array(scores, dtype=np.float32).tobytes()


def test_answers_are_the_recommenders_bit_for_bit(application, known):
    for user in known.user_ids:
        answer = ask(application, "/v1/recommend", query={"user": user, "n": 7})
        ids, scores = known.recommend(user, 7)
        assert answer.status == 200
        assert answer.ids == ids.tolist()
        assert bits(answer) == scores.tobytes()
    assert answer.json["version"] == 3
    assert answer.json["run"] == "run-1"
    assert answer.json["basis"] == "user"
    first = answer.json["items"][0]
    assert first["rank"] == 1
    assert first["title"] == f"Film {first['item_id']}"


def test_a_body_and_an_address_ask_the_same(application, known, published):
    items = [item for item in known.catalogue.item_ids if known.learned(item)][:7]
    fields = {"user": published.user, "n": 5, "exclude": items[:2], "candidates": items}
    by_body = ask(application, "/v1/recommend", body=fields | {"exclude_seen": False})
    by_query = ask(application, "/v1/recommend", query=fields | {"exclude_seen": "false"})
    assert by_body.body == by_query.body
    assert set(by_body.ids) == set(items[2:])


def test_what_was_seen_is_left_out_unless_asked_for(application, published, known):
    had = set(known.history_of(published.user))
    assert had == {item for user, item in published.rows if user == published.user}
    everything = {"user": published.user, "n": 1000}
    assert not had & set(ask(application, "/v1/recommend", query=everything).ids)
    everything["exclude_seen"] = "false"
    assert had & set(ask(application, "/v1/recommend", query=everything).ids)


def test_a_new_user_is_folded_in(application, known):
    history = known.history_of(known.user_ids[2])[:4]
    answer = ask(application, "/v1/recommend", body={"history": history, "n": 6})
    ids, scores = known.recommend_vector(known.fold_in(history), 6, exclude=history)
    assert answer.ids == ids.tolist()
    assert bits(answer) == scores.tobytes()
    assert answer.json["basis"] == "history"


def test_fresh_interactions_count_without_a_round(application, known):
    user, other = known.user_ids[:2]
    recent = known.recommend(user, 2)[0].tolist()
    answer = ask(application, "/v1/recommend", body={"user": user, "recent": recent, "n": 6})
    had = [*known.history_of(user), *recent]
    ids, scores = known.recommend_vector(known.fold_in(had), 6, exclude=had)
    assert answer.ids == ids.tolist()
    assert bits(answer) == scores.tobytes()
    assert not set(recent) & set(answer.ids)
    # Nothing was stored.
    assert ask(application, "/v1/recommend", query={"user": user, "n": 2}).ids == recent
    assert ask(application, "/v1/recommend", query={"user": other}).status == 200


def test_similar_items(application, known, published):
    item = known.recommend(published.user, 1)[0].tolist()[0]
    ids, scores = known.similar_items(item, 5)
    answer = ask(application, "/v1/similar", query={"item": item, "n": 5})
    assert answer.ids == ids.tolist()
    assert bits(answer) == scores.tobytes()
    fewer = ask(
        application, "/v1/similar", body={"item": item, "n": 5, "exclude": ids[:2].tolist()}
    )
    assert fewer.ids[:3] == ids[2:].tolist()
    chosen = {"item": item, "candidates": ids[:2].tolist()}
    assert ask(application, "/v1/similar", body=chosen).ids == ids[:2].tolist()


def test_a_batch_has_the_answers_of_its_users(application, known):
    users = list(known.user_ids[:3])
    item = known.recommend(users[0], 1)[0].tolist()[0]
    more = {"n": 4, "exclude": [item]}
    batch = ask(application, "/v1/batch", body={"users": users, **more})
    assert batch.json["version"] == 3 and [own["user"] for own in batch.json["users"]] == users
    for own in batch.json["users"]:
        one = ask(application, "/v1/recommend", body={"user": own["user"], **more})
        assert own["items"] == one.json["items"]
    by_address = ask(application, "/v1/batch", query={"users": users, **more})
    assert by_address.body == batch.body
    for question, code in (
        ({"users": []}, "malformed"),
        ({}, "malformed"),
        ({"users": [*users, "mallory"]}, "unknown_user"),
        ({"users": users * 34, "n": 1000}, "malformed"),
        ({"users": users, "user": users[0]}, "malformed"),
    ):
        assert ask(application, "/v1/batch", body=question).code == code


def test_the_log_of_requests_names_no_user(served, known):
    user = known.user_ids[0]
    with capture_logs() as lines:
        application = RecommendationApi(served, Gate(), logs=True)
        ask(application, "/v1/recommend", query={"user": user})
        ask(application, "/v1/recommend", body={"user": "mallory"})
        ask(application, f"/v1/{user}")
        ask(RecommendationApi(served, Gate()), "/v1/recommend", query={"user": user})
    found = [(line["method"], line["path"], line["status"]) for line in lines]
    assert found == [
        ("GET", "/v1/recommend", 200),
        ("POST", "/v1/recommend", 404),
        ("GET", "unknown", 404),
    ]
    assert all(line["event"] == "request" and line["milliseconds"] >= 0 for line in lines)


def test_unknown_items_are_refused_or_named(application, known):
    history = [*known.history_of(known.user_ids[0])[:3], "a film of tomorrow"]
    refused = ask(application, "/v1/recommend", body={"history": history})
    assert (refused.status, refused.code) == (404, "unknown_item")
    assert "a film of tomorrow" in refused.json["error"]["message"]
    assert refused.json["version"] == 3
    answer = ask(application, "/v1/recommend", body={"history": history, "ignore_unknown": True})
    assert answer.status == 200
    assert answer.json["ignored"] == ["a film of tomorrow"]
    assert answer.ids == ask(application, "/v1/recommend", body={"history": history[:3]}).ids


def test_a_history_of_which_nothing_was_learned(application, known):
    rare = next(item for item in known.catalogue.item_ids if not known.learned(item))
    for question in (
        {"history": [rare]},
        {"history": ["nobody's"], "ignore_unknown": True},
    ):
        assert ask(application, "/v1/recommend", body=question).code == "never_learned"
    empty = ask(application, "/v1/recommend", body={"history": []})
    assert (empty.status, empty.code) == (400, "malformed")
    assert empty.json["error"]["message"] == "history has no item."
    similar = ask(application, "/v1/similar", query={"item": rare})
    assert (similar.status, similar.code) == (422, "never_learned")


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"path": "/v1/recommend", "query": {"user": "mallory"}}, 404, "unknown_user"),
        ({"path": "/v1/similar", "query": {"item": "nothing"}}, 404, "unknown_item"),
        ({"path": "/v1/recommend"}, 400, "malformed"),
        ({"path": "/v1/recommend", "query": b"user=%ff"}, 400, "malformed"),
        ({"path": "/v1/nothing"}, 404, "not_found"),
        ({"path": "/v1/recommend", "method": "DELETE"}, 405, "wrong_method"),
        ({"path": "/health", "method": "POST"}, 405, "wrong_method"),
        ({"path": "/v1/recommend", "method": "OPTIONS"}, 405, "wrong_method"),
        ({"path": "/v1/recommend", "body": b"user=1"}, 415, "not_json"),
        ({"path": "/v1/recommend", "headers": ()}, 421, "foreign_host"),
        ({"path": "/v1/recommend", "headers": ((b"host", b"evil.example"),)}, 421, "foreign_host"),
        ({"path": "/docs", "headers": (*OWN, (b"origin", b"http://evil"))}, 403, "cross_origin"),
    ],
)
def test_refusals_have_codes_and_remedies(application, request_, status, code):
    answer = ask(application, **request_)  # type: ignore[arg-type]
    assert (answer.status, answer.code) == (status, code)
    assert answer.json["error"]["message"]
    assert answer.json["error"]["remedy"]
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("length", [MOST_BODY_BYTES + 1, 1 << 20, 64 << 20])
def test_a_body_that_is_too_large_is_not_kept(application, length):
    headers = (*OWN, (b"content-type", b"application/json"))
    answer = ask(application, "/v1/recommend", body=b" " * length, headers=headers, pieces=64)
    assert (answer.status, answer.code) == (413, "too_large")
    assert answer.headers["connection"] == "close"


def test_the_token_guards_what_is_about_people(served, published):
    guarded = RecommendationApi(served, Gate(token="f" * 32))
    question = {"user": published.user}
    for headers in (
        OWN,
        (*OWN, (b"authorization", b"Bearer " + b"e" * 32)),
        (*OWN, (b"authorization", b"f" * 32)),
        (*OWN, *2 * ((b"authorization", b"Bearer " + b"f" * 32),)),
    ):
        answer = ask(guarded, "/v1/recommend", query=question, headers=headers)
        assert (answer.status, answer.code) == (401, "unauthorised")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ask(guarded, "/v1/similar", query={"item": "1"}, headers=headers).status == 401
    right = (*OWN, (b"authorization", b"Bearer " + b"f" * 32))
    assert ask(guarded, "/v1/recommend", query=question, headers=right).status == 200
    assert ask(guarded, "/metrics").code == "unauthorised"
    assert ask(guarded, "/metrics", headers=right).status == 200
    # A health check needs none, and learns no numbers of users.
    assert set(ask(guarded, "/health").json) == {"status", "version"}
    assert ask(guarded, "/health", headers=right).json["n_users"] == len(published.users)


def test_without_a_model_it_says_so(silo):
    holder = holder_of(silo)
    application = RecommendationApi(holder, Gate())
    for _ in range(2):
        answer = ask(application, "/v1/recommend", query={"user": "1"})
        assert (answer.status, answer.code) == (503, "not_ready")
        assert answer.headers["retry-after"] == "1"
        assert answer.json["version"] is None
        health = ask(application, "/health")
        assert (health.status, health.json["status"]) == (503, "not_ready")
        holder.look()
    assert "contains no run yet" in answer.json["error"]["message"] or holder.problem is not None
    assert "looks again by itself" in answer.json["error"]["remedy"]
    assert health.json["problem"]["code"] == "storage"


def test_a_defect_tells_nothing_of_itself(application, served, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(Recommender, "recommend", fail)
    user = served.current.recommender.user_ids[0]
    answer = ask(application, "/v1/recommend", query={"user": user})
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret" not in answer.body


def test_titles_are_written_as_json(silo):
    titles = [f'"Quoted\\" \u2028 <{row}> \x07' for row in range(len(silo.catalogue))]
    silo.catalogue = Catalogue.of(silo.catalogue.item_ids, titles)
    silo.publish(3)
    holder = holder_of(silo)
    holder.look()
    answer = ask(RecommendationApi(holder, Gate()), "/v1/recommend", query={"user": silo.user})
    assert answer.status == 200
    for item in answer.json["items"]:
        assert item["title"] == silo.catalogue.title_of(item["item_id"])


def test_scores_that_are_no_numbers_are_not_handed_out(silo):
    silo.train(3)
    shared = silo.shared[3]
    table = np.full_like(shared.tensors["item_embedding"], 1e38)
    silo.shared[3] = shared.with_tensors(item_embedding=table)
    vectors = silo.private[3].arrays()["user_embedding"]
    silo.private[3] = PrivateState.of({"user_embedding": np.full_like(vectors, 1e38)})
    silo.publish(3)
    holder = holder_of(silo)
    with np.errstate(over="ignore"):
        holder.look()
        answer = ask(RecommendationApi(holder, Gate()), "/v1/recommend", query={"user": silo.user})
    assert (answer.status, answer.code) == (500, "internal")


def test_every_answer_is_private(application):
    for path in ("/docs", "/openapi.json", "/health", "/docs.css", "/"):
        answer = ask(application, path)
        assert answer.status == 200
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert json.loads(ask(application, "/openapi.json").body)["openapi"] == "3.1.0"


def test_numbers_for_prometheus(published):
    holder = holder_of(published)
    application = RecommendationApi(holder, Gate())
    question = {"user": published.user}
    ask(application, "/v1/recommend", query=question)
    holder.look()
    ask(application, "/v1/recommend", query=question)
    ask(application, "/v1/recommend", query={"user": "nobody"})
    foreign = ((b"host", b"evil.example"),)
    assert ask(application, "/metrics", headers=foreign).code == "foreign_host"
    application.numbers.refused("too_busy")
    answer = ask(application, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = {
        sample.labels["outcome"]: sample.value
        for sample in families["fedrec_serve_requests"].samples
        if sample.name.endswith("_total") and sample.value
    }
    assert counted == {
        "answered": 1, "not_ready": 1, "unknown_user": 1, "foreign_host": 1, "too_busy": 1,
    }  # fmt: skip
    assert families["fedrec_serve_model_version"].samples[0].value == 3
