"""What a researcher imports: the README's ten lines, data and settings without files."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedrec
import fedrec_lab
from fedrec import FedrecError, load_data, load_settings
from fedrec.data import generate, leave_one_out, splits
from fedrec.data.mapped_items import MappedItems
from fedrec.errors import DataError, SettingsError
from fedrec.extras import install_command
from fedrec_lab.comparison import comparing
from fedrec_lab.reports import round_progress
from fedrec_lab.simulation import runner

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.long
def test_the_ten_lines_of_the_readme(ml_100k, ml_100k_users, capsys):
    block = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[1]
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    note = capsys.readouterr().out
    # Popularity under this split, docs/explanation/evaluation.md.
    assert note.count("0.0764        0.0389") == 2
    ids, scores = names["ids"], names["scores"]
    assert len(ids) == 10
    assert (np.diff(scores) <= 0).all()
    user = ml_100k_users.user_ids.index("196")
    seen = {ml_100k.catalogue.item_ids[item] for item in ml_100k_users.train_of(user)}
    assert not seen & set(ids)


@pytest.mark.parametrize("package", [fedrec, fedrec_lab])
def test_every_public_name_is_there(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_without_torch_the_import_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedrec_lab.simulation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SettingsError, match=re.escape(install_command("client"))):
        _ = fedrec_lab.SimulationResult


def test_a_file_of_any_shape_is_read_with_the_settings_of_data(tmp_path):
    file = tmp_path / "ratings.csv"
    rows = ["user;item;rating", "a;x;5", "a;y;4", "a;z;1", "b;x;5", "b;y;5", "b;w;5"]
    file.write_text("\n".join(rows), encoding="utf-8")
    users, items = load_data(file, minimum_rating=4)
    assert users.user_ids == ("a", "b")
    assert sorted(items.item_ids) == ["w", "x", "y"]


def test_a_wrong_setting_of_reading_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no argument 'minimum_ratings'"):
        load_data(tmp_path / "ratings.csv", minimum_ratings=4)


def test_a_missing_file_and_a_missing_data_set_say_so(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"none\.csv"):
        load_data(tmp_path / "none.csv")
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="fedrec data import ml-1m"):
        load_data("ml-1m")


def test_an_invalid_argument_is_named_with_its_meaning(tmp_path):
    with pytest.raises(SettingsError, match=r"minimum_interactions is 0: .* Leave out users"):
        load_data(tmp_path / "ratings.csv", minimum_interactions=0)


def test_settings_need_no_file():
    values = {"rounds.total": "7", "algorithm.dim": np.int64(16)}
    found = load_settings(values=values, environ={})
    assert (found.rounds.total, found.algorithm.dim) == (7, 16)
    assert found.data.path is None


def test_settings_are_not_assigned_but_loaded_again():
    found = load_settings(environ={})
    with pytest.raises(SettingsError, match=r"total can't be assigned.*rounds\.total"):
        found.rounds.total = 9
    assert load_settings(values={"rounds.total": 9}, environ={}).rounds.total == 9


def test_what_is_wrong_with_values_stands_in_the_message():
    with pytest.raises(FedrecError, match=r"values: .*rounds.totl"):
        load_settings(values={"rounds.totl": 3}, environ={})


@pytest.fixture(scope="module")
def data():
    made = generate(n_users=40, n_items=60, n_clusters=3, interactions_per_user=10, seed=8)
    return leave_one_out(made.interactions, made.catalogue), made.catalogue


@pytest.fixture(scope="module")
def settings():
    values = {"protection.name": "none", "rounds.total": 2, "algorithm.dim": 8}
    values |= {"federation.minimum_item_users": 3}
    return load_settings(algorithm="fedals", values=values | {"client.device": "cpu"}, environ={})


@pytest.fixture(scope="module")
def run(settings, data):
    users, items = data
    return fedrec_lab.simulate(settings, users=users, catalogue=items)


@pytest.fixture(scope="module")
def comparison(settings, data):
    users, items = data
    return fedrec_lab.compare(settings, users=users, catalogue=items, references=())


def test_runs_and_comparisons_are_short_in_a_terminal(run, comparison):
    measured = r"round \d chosen: NDCG@10 0\.\d{4}"
    form = rf"SimulationResult\(fedals \(dense\), 4 rounds, finished, {measured}\)"
    assert re.fullmatch(form, repr(run))
    assert repr(comparison) == f"ComparisonTable({len(comparison.table.rows)} methods, full)"
    assert str(comparison) == str(comparison.table) == comparison.table.to_text()
    assert re.fullmatch(r"RoundReport\(2, train, NDCG 0\.\d{4}\)", repr(run.rounds[1]))
    for part in (run.best, run.rounds, run.recommender(), run.provenance, run.evaluations):
        assert len(repr(part)) < 1000, part


def test_runs_and_comparisons_have_a_table_and_a_figure(run, comparison):
    for value in (run, comparison):
        html = value._repr_html_()
        assert "popularity (protected counts)" in html
        assert "<svg" in html
    assert "chosen on validation" in run._repr_html_()


def test_runs_and_comparisons_are_frames(run, comparison):
    rows = run.to_pandas()
    assert set(rows["scorer"]) >= {"model", "popularity"}
    measured = rows[(rows["scorer"] == "model") & (rows["split"] == "test")]
    assert measured["ndcg"].max() > 0
    assert run.to_arrow().num_rows == len(rows)
    methods = comparison.to_pandas()["method"].tolist()
    assert methods == [row.method for row in comparison.table.rows]


def test_a_run_is_saved_compared_and_loaded(run, settings, data, tmp_path, monkeypatch):
    # Drawing takes most of the time; the next test draws.
    monkeypatch.setattr("fedrec_lab.reports.html.why_no_figures", lambda: "Without figures.")
    users, items = data
    fewer = settings.model_copy(update={"rounds": settings.rounds.model_copy(update={"total": 1})})
    other = fedrec_lab.simulate(fewer, users=users, catalogue=items)
    fedrec_lab.save_run(run, tmp_path / "runs/one")  # replaced, its third training round, too
    first = fedrec_lab.save_run(other, tmp_path / "runs/one")
    second = fedrec_lab.save_run(run, str(tmp_path / "runs/two"))
    found = fedrec_lab.compare_runs(first, second)
    assert found.settings == {"rounds.total": ("1", "2")}
    assert set(found.differences["two"]) == {"hr", "ndcg", "mrr"}
    assert len((first / "rounds.jsonl").read_text("utf-8").splitlines()) == 3
    user = users.user_ids[0]
    again = fedrec.Recommender.load(second).recommend(user, 3)
    assert again.ids.tolist() == run.recommender().recommend(user, 3).ids.tolist()
    with pytest.raises(SettingsError, match="save_run"):
        fedrec_lab.compare_runs(run, other)


def test_a_stopped_run_is_saved_and_resumed_in_its_folder(settings, data, run, tmp_path):
    users, items = data
    where = {"users": users, "catalogue": items, "folder": str(tmp_path)}
    stopped = fedrec_lab.simulate(settings, stop=lambda: True, **where)
    fedrec_lab.save_run(stopped, tmp_path)
    assert fedrec.Recommender.load(tmp_path).round == stopped.best.round
    resumed = fedrec_lab.simulate(settings, resume=True, **where)
    assert np.array_equal(resumed.vectors().items, run.vectors().items)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("simulate", {"n_clients": "3"}, "n_clients is '3'"),
        ("simulate", {"also": ["ful"]}, "also has 'ful'. Choose among full"),
        ("simulate", {"log": "mlfow"}, "no logger 'mlfow'"),
        ("compare", {"references": "ease"}, r"references is 'ease'. Pass a tuple: \('ease',\)"),
        ("compare", {"seeds": 3, "references": ()}, r"seeds is 3. Pass a tuple: \(3,\)"),
    ],
)
def test_an_argument_of_another_type_is_named(settings, data, function, arguments, message):
    users, items = data
    with pytest.raises(SettingsError, match=message):
        getattr(fedrec_lab, function)(settings, users=users, catalogue=items, **arguments)


def test_a_run_hands_out_its_vectors(run):
    found = run.vectors()
    assert found.users.shape == (len(found.user_ids), found.items.shape[1])
    assert found.items.shape[0] == len(found.item_ids)
    user = found.user_ids[0]
    ids, scores = run.recommender().recommend(user, 1)
    row = found.item_ids.tolist().index(ids[0])
    assert scores[0] == pytest.approx(float(found.users[0] @ found.items[row]), rel=1e-5)


@pytest.mark.parametrize(
    ("watched", "progress", "shown"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_progress_shows_where_a_person_looks(
    settings, data, monkeypatch, capsys, watched, progress, shown
):
    for module in (runner, comparing, round_progress):
        monkeypatch.setattr(module, "is_watched", lambda: watched)
    users, items = data
    fedrec_lab.simulate(settings, users=users, catalogue=items, progress=progress)
    assert ("NDCG" in capsys.readouterr().err) is shown
    fedrec_lab.compare(settings, users=users, catalogue=items, references=(), progress=progress)
    assert ("measurements" in capsys.readouterr().err) is shown


def test_progress_in_a_notebook_is_a_bar_in_the_cell(settings, data, monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html)

    class ZMQInteractiveShell:
        pass

    display = SimpleNamespace(HTML=str, display=lambda html, display_id: Handle())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    users, items = data
    fedrec_lab.simulate(settings, users=users, catalogue=items)
    assert len(shown) == settings.rounds.published
    assert '<progress value="4" max="4">' in shown[-1]
    fedrec_lab.compare(settings, users=users, catalogue=items, references=())
    assert 'measurements <progress value="1" max="1"></progress> 1/1 ' in shown[-1]
    del shown[settings.rounds.published :]
    # Who listens is not told twice.
    fedrec_lab.simulate(settings, users=users, catalogue=items, on_round=lambda report: None)
    assert len(shown) == settings.rounds.published


@pytest.mark.parametrize("in_files", [False, True])
def test_a_frame_is_data_wherever_data_are_taken(settings, tmp_path, monkeypatch, in_files):
    pandas = pytest.importorskip("pandas")
    rows = generate(n_users=30, n_items=40, n_clusters=2, interactions_per_user=8, seed=3)
    frame = rows.interactions.to_pandas().rename(columns={"user_id": "who"})
    named = settings.model_copy(
        update={"data": settings.data.model_copy(update={"user_column": "who"})}
    )
    users, items = load_data(frame, user_column="who")
    expected = fedrec_lab.simulate(settings, users=users, catalogue=items)
    assert isinstance(frame, pandas.DataFrame)
    if in_files:
        monkeypatch.setattr(splits, "MOST_FILE_USERS", 7)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        for given in ({"source": frame, "user_column": "who"}, {"source": rows.interactions}):
            assert isinstance(load_data(**given)[0].train_items, MappedItems)
    for given in (frame, rows.interactions):
        found = fedrec_lab.simulate(named, users=given)
        assert isinstance(found.users.train_items, MappedItems) == in_files
        assert found.rows() == expected.rows()
    compared = fedrec_lab.compare(named, users=frame, references=()).table
    assert compared.rows[0].result("full").text("ndcg") == expected.rows()[0].text("ndcg")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, u, c: fedrec_lab.simulate(s), "users and catalogue are missing"),
        (lambda s, u, c: fedrec_lab.simulate(s, users=u), "Only one of users and catalogue"),
        (lambda s, u, c: fedrec_lab.simulate(s, users=c, catalogue=u), "users is of type Catalog"),
        (lambda s, u, c: fedrec_lab.simulate("run.toml"), "settings is of type str. Use load_sett"),
        (
            lambda s, u, c: fedrec_lab.simulate(s, users=u, catalogue=c, n_clients=0),
            "n_clients is 0",
        ),
        (
            lambda s, u, c: fedrec_lab.simulate(s, users=u, catalogue=c, n_clients=10**9),
            "n_clients is 1000000000.",
        ),
        (
            lambda s, u, c: fedrec_lab.simulate(s, users=u, catalogue=c, resume=True),
            "resume is true, but folder is missing",
        ),
        (
            lambda s, u, c: fedrec_lab.compare(s, users=u, catalogue=c, references=("eaze",)),
            "references has 'eaze'. Choose among ",
        ),
        (
            lambda s, u, c: fedrec_lab.compare(s, users=u, catalogue=c, protocols=("ful",)),
            "protocols has 'ful'. Choose among full, sampled, paper",
        ),
        (lambda s, u, c: fedrec_lab.compare(s, users=u, catalogue=c, budget=0), "budget is 0"),
    ],
)
def test_errors_name_arguments_of_python(settings, data, call, message):
    with pytest.raises(SettingsError, match=re.escape(message)) as error:
        call(settings, *data)
    assert "--" not in str(error.value)


@pytest.mark.parametrize(("n", "found"), [(0, "0"), ("3", "'3'"), (2.5, "2.5")])
def test_asking_for_no_number_of_items_names_the_argument(run, n, found):
    with pytest.raises(DataError, match=rf"n is {found}\. Pass an integer"):
        run.recommender().recommend(run.users.user_ids[0], n=n)
