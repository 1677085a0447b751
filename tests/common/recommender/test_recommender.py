"""Recommendations from a model whose right answers are known."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from world.plans import plan_of

import fedrec
from fedrec.data import Catalogue, UserSplit
from fedrec.errors import CatalogueMismatch, DataError, SettingsError, StorageError
from fedrec.ids import RoundId
from fedrec.model.state import PrivateState
from fedrec.recommender import ModelFile, Recommender
from fedrec.training.learner import Learner


def test_the_best_that_the_user_does_not_have(recommender):
    ids, scores = recommender.recommend("anna", 3)
    # a0, a2 and b0 are had already, be it for training, validation or test.
    assert ids.tolist() == ["a1", "b1", "b2"]
    assert scores.tolist() == pytest.approx([2.0, 0.1, 0.1])
    assert scores.dtype == np.float32


def test_users_with_scores_of_their_own_are_answered_from_those(model, catalogue, users):
    own = np.tile(np.array([1, 2, 9, 3, 4, 5, 99], np.float32), (3, 1))
    own[1, 0] = 50.0
    private = PrivateState({**users.private.tensors, "personal_scores": own})
    settings = {"algorithm": {"name": "pfedrec", "dim": 2}, "update": {"structure": "dense"}}
    plan = plan_of(**settings, federation={"minimum_item_users": 10})
    personal = replace(model, plan=plan)
    recommender = Recommender(personal, catalogue, replace(users, private=private))
    ids, scores = recommender.recommend(["anna", "ben"], 3)
    assert ids.tolist() == [["a1", "b2", "b1"], ["a0", "a1", "b2"]]
    assert scores.tolist() == [[9.0, 5.0, 3.0], [50.0, 9.0, 5.0]]
    assert (recommender.recommend("anna", 3)[0] == ids[0]).all()
    cut = PrivateState({**users.private.tensors, "personal_scores": own[:, :6]})
    for wrong in (users, replace(users, private=cut)):
        with pytest.raises(StorageError, match="not match pfedrec with 7 items"):
            Recommender(personal, catalogue, wrong)
    # What lies beside the vectors of an algorithm that keeps no scores is not asked.
    other = Recommender(model, catalogue, replace(users, private=private))
    assert other.recommend("anna", 1)[0].tolist() == ["a1"]
    assert other.recommend("anna", 1)[1].tolist() == [2.0]


def test_the_algorithm_says_how_vectors_are_scored(catalogue, users):
    settings = {"algorithm": {"name": "fedncf", "dim": 2}, "update": {"structure": "dense"}}
    plan = plan_of(**settings, federation={"minimum_item_users": 1})
    learner = Learner(plan, len(catalogue), device="cpu")
    model = ModelFile(
        plan=plan,
        catalogue_fingerprint=catalogue.fingerprint(),
        round=RoundId(2),
        shared=learner.server.initial_shared(),
    )
    recommender = Recommender(model, catalogue, users)
    split = UserSplit(
        user_ids=users.user_ids,
        train_indptr=np.zeros(4, dtype=np.int64),
        train_items=np.empty(0, dtype=np.int64),
        validation_items=np.full(3, -1),
        test_items=np.full(3, -1),
    )
    ((_, wanted),) = learner.local.score_blocks(model.shared, split, users.private)
    _, scores = recommender.recommend(list(users.user_ids), 7, exclude_seen=False)
    assert scores == pytest.approx(np.sort(wanted.numpy())[:, ::-1], abs=1e-6)
    own = recommender.recommend_vector(np.array([1.0, 0.0]), 7)[1]
    assert own == pytest.approx(scores[0])
    with pytest.raises(SettingsError, match="no user vector into which a history"):
        recommender.fold_in(["a0"])


def test_equal_scores_stand_in_the_order_of_the_catalogue(recommender):
    assert recommender.recommend("anna", 2)[0].tolist() == ["a1", "b1"]


def test_many_users_are_asked_like_one(recommender):
    ids, scores = recommender.recommend(["ben", "anna"], 2)
    assert ids.shape == scores.shape == (2, 2)
    assert ids[1].tolist() == recommender.recommend("anna", 2)[0].tolist()
    assert ids[0].tolist() == ["b1", "b2"]
    assert recommender.recommend(["anna"], 2)[0].shape == (1, 2)
    assert recommender.recommend([], 2)[0].shape == (0, 0)


def test_who_has_almost_everything_gets_what_is_left(recommender):
    ids, _ = recommender.recommend("cleo", 5)
    assert ids.tolist() == ["b2"]
    ids, scores = recommender.recommend(["anna", "cleo"], 5)
    assert ids.tolist() == [["a1", "b1", "b2"], ["b2", "", ""]]
    assert np.isneginf(scores[1, 1:]).all()


def test_what_was_never_learned_is_never_recommended(recommender):
    ids, _ = recommender.recommend("anna", 99, exclude_seen=False)
    assert len(ids) == 6
    assert "rare" not in ids
    ids, _ = recommender.recommend("anna", 9, candidates=["rare"])
    assert len(ids) == 0


def test_candidates_and_block(recommender):
    ids, _ = recommender.recommend("ben", 9, candidates=["a1", "b1", "b2", "b0"])
    assert ids.tolist() == ["b1", "b2", "a1"]
    ids, _ = recommender.recommend("ben", 9, candidates=["a1", "b1", "b2"], block=["b1"])
    assert ids.tolist() == ["b2", "a1"]
    ids, _ = recommender.recommend("ben", 1, exclude_seen=False)
    assert ids.tolist() == ["b0"]


def test_similar_items_have_the_same_taste(recommender):
    ids, scores = recommender.similar_items("a0", 2)
    assert ids.tolist() == ["a1", "a2"]
    assert scores[0] == pytest.approx(2 / np.hypot(2, 0.1))
    ids, _ = recommender.similar_items(["b0", "a2"], 1)
    assert ids.tolist() == [["b1"], ["a1"]]
    with pytest.raises(DataError, match="never learned"):
        recommender.similar_items("rare")


def test_similar_items_among_some(recommender):
    ids, _ = recommender.similar_items("a0", 9, candidates=["b1", "a2", "a1", "rare"], block=["a1"])
    assert ids.tolist() == ["a2", "b1"]
    ids, _ = recommender.similar_items(["a0", "b0"], 9, block=["a1", "a2", "b1"])
    assert ids.tolist() == [["b2", "b0"], ["b2", "a0"]]


def test_what_is_known_of_users_and_items(recommender):
    assert recommender.knows("anna")
    assert not recommender.knows("dora")
    assert recommender.history_of("anna") == ["a0", "b0", "a2"]
    with pytest.raises(DataError, match="'dora'"):
        recommender.history_of("dora")
    assert recommender.learned("a0")
    assert not recommender.learned("rare")
    assert not recommender.learned("zzz")


def test_a_newcomer_is_recommended_what_the_history_says(recommender):
    vector = recommender.fold_in(["a0", "a2", "rare"])
    assert vector.shape == (2,)
    assert vector.dtype == np.float32
    assert vector[0] > 0 > vector[1]
    ids, _ = recommender.recommend_vector(vector, 1, exclude=["a0", "a2"])
    assert ids.tolist() == ["a1"]
    assert np.array_equal(recommender.fold_in(["a2", "a0", "a2"]), vector)
    with pytest.raises(DataError, match="None of the 1 items"):
        recommender.fold_in(["rare"])


def test_fold_in_is_the_minimum_of_its_loss(recommender, model):
    """The gradient of the documented loss vanishes."""
    vector = recommender.fold_in(["a0", "b1"]).astype(float)
    items = model.shared.tensors["item_embedding"][:6]
    settings = model.plan.algorithm
    chance = 1 / (1 + np.exp(-(items @ vector)))
    positive = np.array([1, 0, 0, 1, 0, 0], bool)
    k = settings.negatives_per_positive
    gradient = ((chance - 1)[positive, None] * items[positive]).mean(0) / (1 + k)
    gradient += (chance[~positive, None] * items[~positive]).mean(0) * k / (1 + k)
    gradient += 2 * settings.regularisation * vector
    assert np.abs(gradient).max() < 1e-6


def test_bad_questions_name_the_remedy(recommender):
    with pytest.raises(DataError, match="'dora'") as error:
        recommender.recommend(["anna", "dora"])
    assert "fold_in" in error.value.remedy
    with pytest.raises(CatalogueMismatch, match="'zzz'"):
        recommender.recommend("anna", block=["zzz"])
    with pytest.raises(DataError, match="n is 0"):
        recommender.recommend("anna", 0)
    for vector in (np.zeros(3), np.array([np.nan, 0.0])):
        with pytest.raises(DataError, match="user vector"):
            recommender.recommend_vector(vector)


def test_without_user_vectors_it_says_where_they_are(model, catalogue):
    coordinators = Recommender(model, catalogue)
    with pytest.raises(DataError, match="stay with the clients"):
        coordinators.recommend("anna")
    assert coordinators.user_ids == ()
    ids, _ = coordinators.recommend_vector(np.array([1.0, 0.0]), 1)
    assert ids.tolist() == ["a0"]


def test_files_that_do_not_belong_together(model, catalogue, users):
    with pytest.raises(CatalogueMismatch):
        Recommender(model, Catalogue.of(["x"]), users)
    wrong = replace(users, private=PrivateState({"user_embedding": np.zeros((3, 5), np.float32)}))
    with pytest.raises(StorageError, match="do not match it"):
        Recommender(model, catalogue, wrong)


def test_saved_and_loaded_it_answers_the_same(recommender, tmp_path):
    recommender.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    assert repr(loaded) == "Recommender(round=17, n_items=7, n_users=3)"
    for one, other in zip(
        recommender.recommend(["anna", "ben", "cleo"]),
        loaded.recommend(["anna", "ben", "cleo"]),
        strict=True,
    ):
        assert np.array_equal(one, other)


OPTIONAL = ("torch", "numba", "tenseal", "gmpy2", "pyarrow", "scipy", "pandas", "matplotlib", "phe")
"""What extras bring, and `fedrec[recommend]` does not."""


@pytest.mark.slow
def test_recommending_needs_no_extra(recommender, tmp_path):
    recommender.save(tmp_path)
    program = (
        "import sys, fedrec\n"
        "assert 'numpy' not in sys.modules, 'import fedrec is not cheap'\n"
        f"sys.modules |= dict.fromkeys({OPTIONAL})\n"
        f"found = fedrec.Recommender.load({str(tmp_path)!r})\n"
        "found.recommend('anna')._repr_html_(), found.vectors(), found.fold_in(['a0'])\n"
        "from fedrec.cli.main import main\n"
        f"sys.argv[1:] = ['recommend', {str(tmp_path)!r}, '--user', 'anna']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert "a1" in done.stdout


def test_the_package_lists_what_it_exports():
    assert "Recommender" in fedrec.__all__
    assert fedrec.Recommender is Recommender
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedrec.nothing  # noqa: B018


def test_answers_carry_titles_and_are_frames(model, users):
    titled = Catalogue.of(
        ["a0", "b0", "a1", "b1", "a2", "b2", "rare"], ["First", "", "Second", "", "", "", ""]
    )
    recommender = Recommender(model, titled, users)
    found = recommender.recommend(["anna", "ben"], 2)
    assert found.titles.tolist() == [["Second", "b1"], ["b1", "b2"]]
    assert repr(recommender.recommend("anna", 1)) == "anna  1  a1  Second  2.000"
    assert "Second" in found._repr_html_()
    frame = found.to_pandas()
    assert frame["asked"].tolist() == ["anna", "anna", "ben", "ben"]
    assert frame["rank"].tolist() == [1, 2, 1, 2]
    assert found.to_arrow().num_rows == 4
    assert repr(recommender.recommend([])) == "no items"
    # Places that are padded are no rows.
    assert len(recommender.recommend(["anna", "cleo"], 5).columns()["rank"]) == 4


def test_integer_ids_are_their_digits(model, users):
    numbered = Catalogue.of([str(number) for number in range(7)])
    numbered_model = replace(model, catalogue_fingerprint=numbered.fingerprint())
    own = replace(users, user_ids=("196", "3", "7"))
    recommender = Recommender(numbered_model, numbered, own)
    assert (recommender.recommend(196, 2)[0] == recommender.recommend("196", 2)[0]).all()
    numbers, texts = recommender.recommend([196, np.int64(3)]), recommender.recommend(["196", "3"])
    assert (numbers.ids == texts.ids).all()
    assert recommender.similar_items(0, 1)[0] == recommender.similar_items("0", 1)[0]
    assert recommender.recommend(196, block=[2])[0][0] != "2"
    assert recommender.knows(3) and recommender.learned(0) and 0 in numbered
    assert recommender.history_of(196) == recommender.history_of("196")
    with pytest.raises(DataError, match="User '5' is not among"):
        recommender.recommend(5)
    with pytest.raises(CatalogueMismatch, match="'99'"):
        recommender.recommend(196, candidates=[99])


def test_vectors_come_with_their_ids(recommender, model, catalogue):
    found = recommender.vectors()
    assert found.user_ids.tolist() == ["anna", "ben", "cleo"]
    assert found.users.tolist() == [[1, 0], [0, 1], [1, 1]]
    # `rare` was never learned.
    assert found.item_ids.tolist() == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert found.items.shape == (6, 2)
    assert repr(found) == "Vectors(users (3, 2), items (6, 2))"
    frame = found.to_pandas()
    assert frame["id"].tolist() == [*found.user_ids, *found.item_ids]
    assert np.array_equal(np.stack(frame["vector"][frame["kind"] == "item"]), found.items)
    assert found.to_arrow()["vector"].to_pylist()[:3] == found.users.tolist()
    with pytest.raises(DataError, match="no user vectors here"):
        Recommender(model, catalogue).vectors()
