"""The model that a service holds, of every algorithm."""

import asyncio
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from client.serve.asking import ask, read_users_here
from conformance.party import Party, plan_of
from world.silo import Silo

from fedrec.algorithms import ALGORITHMS
from fedrec.algorithms.ease import EASE
from fedrec.errors import NoInformation, StorageError, VersionMismatch
from fedrec.follower.database import STATE_FILE
from fedrec_client.own_recommender import export_model, own_recommender, uninformed
from fedrec_client.serve.model_holder import ModelHolder
from fedrec_client.serve.recommendation_api import RecommendationApi
from fedrec_client.serve.request_reading import Gate
from fedrec_client.serve.users_apart import read_users_apart
from fedrec_client.state.private_store import PrivateStore


class WatchedHolder:
    """A holder of a silo, what it said, and how often it read the users."""

    def __init__(self, silo):
        self.sentences: list[str] = []
        self.readings = 0
        self.holder = ModelHolder(
            silo.settings,
            on_change=lambda change: self.sentences.append(str(change)),
            read_users=self._read,
        )
        self.application = RecommendationApi(self.holder, Gate())

    def _read(self, *asked):
        self.readings += 1
        return read_users_here(*asked)

    @property
    def version(self):
        current = self.holder.current
        return None if current is None else int(current.recommender.round)


@pytest.fixture
def watched(silo):
    return WatchedHolder(silo)


@pytest.mark.slow
def test_it_becomes_ready_by_itself(silo, watched):
    watched.holder.look()
    assert watched.version is None
    assert watched.sentences[0].startswith("not ready: ")
    silo.publish(3)
    watched.holder.look()
    assert watched.version == 3
    assert watched.holder.problem is None
    assert watched.sentences[1:] == ["version 3 is served"]


@pytest.mark.slow
def test_a_new_version_is_taken_and_users_are_not_read_again(silo, watched):
    silo.publish(3)
    watched.holder.look()
    before = watched.holder.current
    watched.holder.look()
    assert watched.holder.current is before
    silo.publish(4)
    watched.holder.look()
    assert watched.version == 4
    assert watched.readings == 1
    ids, _ = own_recommender(silo.settings).recommend(silo.user, 5)
    question = {"user": silo.user, "n": 5}
    assert ask(watched.application, "/v1/recommend", query=question).ids == ids.tolist()


@pytest.mark.slow
def test_what_a_client_notes_besides_replaces_nothing(silo, watched):
    silo.publish(3)
    watched.holder.look()
    before = watched.holder.current
    with PrivateStore(silo.state) as store:
        store.roll_back()
        store.keep_counted(b"{}")
        watched.holder.look()
        # Beside the client that has the folder's lock.
        assert ask(watched.application, "/v1/recommend", query={"user": silo.user}).status == 200
    assert watched.holder.current is before


@pytest.mark.slow
def test_serving_changes_nothing_in_the_folder(silo, watched):
    silo.publish(3)
    before = silo.files()
    watched.holder.look()
    ask(watched.application, "/v1/recommend", query={"user": silo.user})
    ask(watched.application, "/v1/recommend", body={"user": silo.user, "recent": ["i01"]})
    assert silo.files() == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "private"])
def test_half_a_file_leaves_the_version_before_in_service(silo, watched, kind):
    silo.publish(3)
    watched.holder.look()
    silo.publish(4)
    (file,) = silo.state.glob(f"{kind}-*.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    watched.holder.look()
    assert watched.version == 3
    assert isinstance(watched.holder.problem, StorageError)
    assert watched.sentences[-1].startswith("version 3 stays in service: ")
    health = ask(watched.application, "/health")
    assert (health.status, health.json["version"]) == (200, 3)
    assert "is damaged" in health.json["problem"]["message"]
    assert ask(watched.application, "/v1/recommend", query={"user": silo.user}).json["version"] == 3
    # Nothing tells when the file is whole again: it is looked at again and again.
    file.write_bytes(whole)
    for _ in range(3):
        watched.holder.look()
    assert watched.version == 4
    assert watched.holder.problem is None
    assert len(watched.sentences) == 3


@pytest.mark.slow
def test_another_release_s_folder_is_not_read(silo, watched):
    silo.publish(3)
    watched.holder.look()
    with closing(sqlite3.connect(silo.state / STATE_FILE)) as rows:
        rows.execute("PRAGMA user_version = 999")
    watched.holder.look()
    assert isinstance(watched.holder.problem, VersionMismatch)
    assert watched.version == 3
    fresh = WatchedHolder(silo)
    fresh.holder.look()
    answer = ask(fresh.application, "/v1/recommend", query={"user": silo.user})
    assert answer.code == "not_ready"
    assert "999" in answer.json["error"]["message"]


@pytest.mark.slow
def test_other_users_in_the_data(silo, watched):
    silo.publish(3)
    watched.holder.look()
    silo.write_data([*silo.rows, ("somebody else", silo.rows[0][1])])
    watched.holder.look()
    assert watched.version == 3
    assert "other users" in str(watched.holder.problem)
    watched.holder.look()
    assert watched.readings == 2, "what cannot be used is not read at every look"
    silo.write_data([*silo.rows[:-1], (silo.user, "i59")])
    watched.holder.look()
    assert watched.holder.problem is None


@pytest.mark.slow
def test_a_failing_folder_is_tried_ever_less_often(silo, watched):
    silo.publish(3)
    (silo.folder / "data.csv").write_text("nothing of use\n")
    for _ in range(400):
        watched.holder.look()
    # After 2, 4, 8 ... 64 looks, and then every 64th.
    assert 8 <= watched.readings <= 14
    assert len(watched.sentences) == 1


@pytest.mark.slow
def test_a_file_that_went_away_is_looked_for_at_once(silo, watched, monkeypatch):
    silo.publish(3)
    watched.holder.look()
    current = watched.holder.current
    assert current is not None

    def gone(*_, **__):
        raise StorageError("block-1.bin cannot be read.")

    async def follow_a_question():
        following = asyncio.ensure_future(watched.holder.follow(3600.0))
        await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(type(current.recommender), "recommend", gone)
            answer = await asyncio.to_thread(
                ask, watched.application, "/v1/recommend", query={"user": silo.user}
            )
            assert (answer.status, answer.code) == (503, "not_ready")
        watched.holder.look_soon()
        while watched.holder.current is current:
            await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(asyncio.wait_for(follow_a_question(), 60))
    assert watched.version == 3


@pytest.mark.slow
def test_who_asks_for_a_look_during_one_gets_another(silo):
    """What it wants came after that look had read the state."""

    def read_users(*asked):
        users = read_users_apart(*asked)  # type: ignore[arg-type]
        if asked[-1] == 3:
            silo.publish(4)
            holder.look_soon()
        return users

    silo.publish(3)
    served: list[int | None] = []
    holder = ModelHolder(
        silo.settings, read_users=read_users, on_change=lambda change: served.append(change.version)
    )

    async def follow():
        following = asyncio.ensure_future(holder.follow(3600.0))
        while 4 not in served:
            await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(asyncio.wait_for(follow(), 60))


@pytest.mark.slow
def test_the_reading_process_says_what_is_wrong(silo, tmp_path):
    silo.publish(3)
    users, tail = read_users_apart(silo.settings, "best", 3)
    assert tail is None
    assert users.user_ids == silo.users.user_ids
    assert users.private.tensors == {}
    for other in (2, 4):
        with pytest.raises(StorageError, match="changed to a different version"):
            read_users_apart(silo.settings, "best", other)


@pytest.mark.slow
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
        text = np.array([item["score"] for item in answer.json["items"]], dtype=np.float32)
        assert text.tobytes() == scores.tobytes()
        rows, trained = learner.local.recommend(shared, silo.users, private, index, 5)
        assert answer.ids == list(silo.catalogue.ids_of(rows))
        # What is the same for all items of a user may be missing.
        assert np.diff(text) == pytest.approx(np.diff(trained), rel=1e-3, abs=1e-4)
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
    assert (folded.status == 200) is (name not in {"fedncf", "fedrecgel", "fedrap", "gpfedrec"})


@pytest.mark.slow
def test_a_model_that_is_noise_alone_is_neither_served_nor_exported(tmp_path):
    silo = Silo(tmp_path, "ease")
    untouched = {
        "algorithm": {"regularisation": EASE.settings_type.model_fields["regularisation"].default},
        "privacy": {"mechanism": "gaussian", "epsilon": 1.0},
        "federation": {"minimum_item_users": 1},
    }
    silo.plan = plan_of("ease", "dense", **untouched)
    silo.party = Party.of(silo.plan, silo.users)
    silo.shared[3], silo.private[3] = silo.party.shared, silo.party.private
    silo.publish(3)
    watched = WatchedHolder(silo)
    watched.holder.look()
    assert isinstance(watched.holder.problem, NoInformation)
    answer = ask(watched.application, "/v1/recommend", query={"user": silo.user})
    assert answer.status == 503 and "privacy.epsilon = 1." in answer.json["error"]["message"]
    with pytest.raises(NoInformation):
        export_model(silo.settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # This is why `fedrec client run` ends with its exit code.
    assert isinstance(uninformed(silo.settings), NoInformation)
