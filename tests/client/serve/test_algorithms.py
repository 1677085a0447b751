"""Every algorithm is served, and answers what `Recommender` and its own training code do."""

from __future__ import annotations

import numpy as np
import pytest
from client.serve.asking import ask
from client.support.silo import Silo

from fedrec.algorithms import ALGORITHMS
from fedrec_client.recommending import own_recommender
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import Gate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_answers_are_the_recommenders(name, tmp_path):
    silo = Silo(tmp_path, name)
    silo.publish(3)
    holder = ModelHolder(silo.settings)
    holder.look()
    assert holder.problem is None
    application, known = RecommendationApi(holder, Gate()), own_recommender(silo.settings)
    learner, shared, private = silo.party.learner, silo.shared[3], silo.private[3]
    for index, user in enumerate(known.user_ids[:6]):
        answer = ask(application, "/v1/recommend", query={"user": user, "n": 5})
        assert answer.status == 200, answer.body
        ids, scores = known.recommend(user, 5)
        assert answer.ids == ids.tolist()
        said = np.array([item["score"] for item in answer.json["items"]], dtype=np.float32)
        assert said.tobytes() == scores.tobytes()
        rows, trained = learner.local.recommend(shared, silo.users, private, index, 5)
        assert answer.ids == list(silo.catalogue.ids_of(rows))
        # What is the same for all items of a user may be missing.
        assert np.diff(said) == pytest.approx(np.diff(trained), rel=1e-3, abs=1e-4)
    item = ids.tolist()[0]
    similar = ask(application, "/v1/similar", query={"item": item, "n": 3})
    assert similar.ids == known.similar_items(item, 3)[0].tolist()
    history = known.history_of(known.user_ids[0])
    folded = ask(application, "/v1/recommend", body={"history": history, "n": 3})
    if folded.status == 200:
        found = known.recommend_vector(known.fold_in(history), 3, exclude=history)
        assert folded.ids == found[0].tolist()
    else:
        assert (folded.status, folded.code) == (422, "no_fold_in")
    assert (folded.status == 200) is (name not in {"fedncf", "fedrecgel", "fedrap"})
