"""The trainer and the plain twins of `tests/reference` agree, whatever is trained and however."""

from functools import cache

import numpy as np
import pytest
from conformance.toys import DIM as TOY_DIM
from conformance.toys import TOYS, registered
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.rounds import SEED, TWINS, Tensors, plgc
from world.plans import plan_of, users_of

from fedrec.training.learner import Learner

ROUNDS = (4, 5, 6)


@cache
def people(few):
    """Return users of 4 to 14 training items, so that batches differ and items come twice."""
    if few:
        return users_of(7, 31, clusters=2, each=12, short=12)
    return users_of(11, 40, clusters=2, each=16, short=16)


# Cases: the twin, the algorithm's settings, the update's, and how near float32 comes on the grid
# (0: not tried there).

GAMMA = {"dim": 6, "learning_rate": 0.4, "local_epochs": 3}
STRUCTURES: dict[str, Tensors] = {
    "dense": {},
    "colr": {"structure": "colr", "rank": 2},
    "scolr": {"structure": "scolr", "rank": 4},
    "scolr-entry": {"structure": "scolr", "rank": 4, "normaliser": "entry"},
    "scolr-client": {"structure": "scolr", "rank": 4, "subset": "client"},
    "scolr-client-entry": {
        "structure": "scolr", "rank": 4, "subset": "client", "normaliser": "entry",
    },
    "svd": {"structure": "svd", "rank": 2},
    "topk": {"structure": "topk", "ratio": 0.2},
}  # fmt: skip
NCF = {"dim": 5, "item_rate_scale": 2.0, "user_rate_scale": 2.0, "local_epochs": 2}
RAP = {
    "dim": 5, "learning_rate": 0.3, "item_rate": 8.0, "weight_decay": 2e-3, "batch_size": 7,
    "local_epochs": 3, "negatives_per_positive": 1, "difference_weight": 0.3,
    "sparsity_weight": 0.2,
}  # fmt: skip
SHARED = {key: value for key, value in RAP.items() if key != "difference_weight"}
ALONE = {key: value for key, value in RAP.items() if key != "sparsity_weight"}
REC = {"dim": 5, "learning_rate": 0.3, "item_rate_scale": 0.1}
CLR = {
    "dim": 5, "learning_rate": 0.02, "personal_rate": 0.03, "local_epochs": 2, "batch_size": 23,
    "item_deviation": 0.5,
}  # fmt: skip
GEL = {"dim": 4, "hidden_layers": 3, "batch_size": 12, "learning_rate": 0.02}
GP = {
    "dim": 5, "learning_rate": 0.05, "item_rate_scale": 0.5, "user_rate_scale": 2.0,
    "batch_size": 7,
}  # fmt: skip
CO = REC | {"weight": 0.05, "temperature": 0.4, "clusters": 5, "batch_size": 7}
PER = {"dim": 5, "learning_rate": 0.02, "batch_size": 16, "clusters": 3}
GRAPH = {
    "dim": 5, "learning_rate": 0.02, "batch_size": 23, "local_epochs": 2, "weight": 0.3,
    "smoothing": 2.0,
}  # fmt: skip
BASES: dict[str, Tensors] = {
    "fedmf": {"learning_rate": 0.4, "regularisation": 0.02},
    "pfedrec": {"learning_rate": 0.3, "item_rate_scale": 0.1},
    "fedncf": {"learning_rate": 0.05, "user_rate_scale": 2.0, "item_rate_scale": 0.1},
}
OVER: dict[str, tuple[str, Tensors]] = {
    "fedmf": ("fedmf", {"weight": 0.0}),
    "pfedrec": ("pfedrec", {"weight": 0.0}),
    "fedncf": ("fedncf", {"weight": 0.0}),
    "fedmf-err": ("fedmf", {}),
    "fedmf-err-rows": ("fedmf", {"projector": False}),
    "fedmf-err-only": ("fedmf", {"mixing": False, "projector": False}),
    "fedmf-au": ("fedmf", {"regulariser": "au", "off_weight": 0.5}),
    "fedmf-duorec": ("fedmf", {"regulariser": "duorec", "temperature": 0.5}),
    "fedmf-feddecorr": ("fedmf", {"regulariser": "feddecorr"}),
    "pfedrec-err": ("pfedrec", {}),
    "fedncf-err-rows": ("fedncf", {"projector": False}),
}
OVER_FEDRAP = {
    "name": "fedrap", "dim": 4, "learning_rate": 0.3, "item_rate": 8.0, "weight_decay": 2e-3,
    "local_epochs": 3, "tolerance": 0.0, "difference_weight": 0.3, "sparsity_weight": 0.2,
}  # fmt: skip
Case = tuple[str, Tensors, Tensors, float]


def cases():
    """Yield every case under its name."""
    for structure, update in STRUCTURES.items():
        for batch in (7, 1000):
            for gamma in (0.0, 0.02):
                own = GAMMA | {"regularisation": gamma, "batch_size": batch}
                name = f"fedmf {structure} {batch} {gamma}"
                yield name, ("fedmf", own, update, 1e-5 if gamma else 0.0)
    for aggregation in ("mf_secavg", "plain"):
        for optimiser, rate, decays in (("sgd", 0.5, (0.0, 0.02)), ("adam", 0.01, (0.0, 0.05))):
            for decay in decays if aggregation == "mf_secavg" else (0.0,):
                for batch in (7, 1000):
                    own = NCF | {
                        "aggregation": aggregation, "optimiser": optimiser, "learning_rate": rate,
                        "weight_decay": decay, "batch_size": batch,
                    }  # fmt: skip
                    name = f"fedncf {aggregation} {optimiser} {decay} {batch}"
                    yield name, ("fedncf", own, {}, 1e-3 if optimiser == "adam" else 1e-5)
    for batch, epochs in ((7, 1), (7, 3), (16, 2), (1000, 1), (1000, 3)):
        own = REC | {"batch_size": batch, "local_epochs": epochs}
        yield f"pfedrec {batch} {epochs}", ("pfedrec", own, {"clip": 64.0}, 1e-5)
        published = own | {"personal_items": False}
        yield f"pfedrec {batch} {epochs} published", ("pfedrec", published, {"clip": 64.0}, 0.0)
    for rank in (1, 3):
        for batch, epochs in ((7, 3), (1000, 1)):
            own = REC | {"batch_size": batch, "local_epochs": epochs}
            low = {"structure": "colr", "rank": rank, "clip": 64.0}
            yield f"pfedrec {batch} {epochs} rank {rank}", ("pfedrec", own, low, 0.0)
    for own, update in (
        (RAP, {}), (SHARED | {"tables": "shared"}, {}), (ALONE | {"tables": "private"}, {}),
        (ALONE | {"sparsity": "none"}, {}), *((RAP | one, {}) for one in (
            {"sparsity": "l2"}, {"schedule": "fixed"}, {"schedule": "sin"},
            {"schedule": "square"}, {"schedule": "frac"}, {"batch_size": 1000},
            {"weight_decay": 0.0}, {"tolerance": 0.03},
            # All rows are stepped, one by one, and clipping of C's gradients is all that noise
            # leaves.
            {"noise_where": "grad", "noise_clip": 0.02, "noise_multiplier": 1e-12},
            {"noise_where": "grad", "noise_clip": 1e3, "noise_multiplier": 1e-14,
             "batch_size": 1000},
            {"tolerance": 0.16, "local_epochs": 6},
        )),
        (SHARED | {"tables": "shared"}, {"structure": "colr", "rank": 2}),
        (SHARED | {"tables": "shared", "batch_size": 1000, "sparsity": "l2"},
         {"structure": "colr", "rank": 1}),
        (SHARED | {"tables": "shared", "tolerance": 0.03}, {"structure": "colr", "rank": 5}),
    ):  # fmt: skip
        changed = {k: v for k, v in own.items() if RAP.get(k) != v}
        near = 0.0 if own.get("tolerance", 0) > 0.1 else 1e-5
        yield f"fedrap {changed} {update}", ("fedrap", own, {"clip": 16.0} | update, near)
    for changed in (
        {"rank": 3}, {"variant": "cf"}, {"variant": "af"}, {"rank": 3, "aggregation": False},
        {"rank": 3, "gradient_clip": 0.01}, {"variant": "af", "gradient_clip": 0.01},
    ):  # fmt: skip
        yield f"pfedclr {changed}", ("pfedclr", CLR | changed, {"fraction_bits": 30}, 1e-3)
    for radii in ((0.02, 0.02), (0.0, 0.02), (0.02, 0.0), (0.0, 0.0)):
        own = GEL | {"radius_shared": radii[0], "radius_private": radii[1]}
        yield f"fedrecgel {radii}", ("fedrecgel", own, {}, 1e-3)
        flat = own | {"hidden_layers": 1, "batch_size": 1000}
        yield f"fedrecgel {radii} flat", ("fedrecgel", flat, {}, 0.0)
    for changed in (
        {}, {"similarity": "distance"}, {"neighbours": 3, "layers": 2, "local_epochs": 2},
        {"pull": 0.0}, {"batch_size": 1000},
    ):  # fmt: skip
        yield f"gpfedrec {changed}", ("gpfedrec", GP | changed, {"clip": 64.0}, 0.0)
    for changed in ({}, {"others": "global", "local_epochs": 2}, {"weight": 0.0}):
        yield f"cofedrec {changed}", ("cofedrec", CO | changed, {"clip": 64.0}, 0.0)
    for changed in ({}, {"convolution": "from_first", "local_epochs": 2}):
        yield f"perfedrec {changed}", ("perfedrec", PER | changed, {}, 0.0)
    for changed in ({}, {"sign": "released", "batch_size": 1000}, {"weight": 0.0}):
        yield f"pfedgraph {changed}", ("pfedgraph", GRAPH | changed, {}, 0.0)
    for name, (base, changed) in OVER.items():
        near = 1e-3 if changed.get("weight", 0.5) else 1e-5
        for batch, tried in ((7, 0.0), (16, near), (1000, 0.0)):
            inner = {"name": base, "dim": 4, "batch_size": batch, "local_epochs": 2, **BASES[base]}
            own = {"projector_rate": 0.05, "base": inner, **changed}
            yield f"plgc {name} {batch}", ("plgc", own, {"clip": 64.0, "fraction_bits": 32}, tried)
    for weight, projector in ((0.0, {}), (0.4, {"projector": False})):
        for batch in (7, 1000):
            own = {"weight": weight, "base": OVER_FEDRAP | {"batch_size": batch}, **projector}
            yield f"plgc fedrap {weight} {batch}", ("plgc-fedrap", own, {"clip": 16.0}, 0.0)
    for base, changed in (
        (GP, {}), (GP, {"weight": 0.0}), (GP, {"mixing": False, "projector": False}),
        (PER, {}), (PER, {"weight": 0.0}), (PER, {"mixing": False, "projector": False}),
    ):  # fmt: skip
        name = "gpfedrec" if base is GP else "perfedrec"
        inner = {"name": name, **base, "local_epochs": 2}
        own = {"projector_rate": 0.05, "base": inner, **changed}
        yield f"plgc {name} {changed}", ("plgc-apart", own, {"clip": 64.0}, 0.0)
    passes = {"batch_size": 7, "local_epochs": 2}
    wrapped = {"name": "fedmf", "dim": TOY_DIM, "regularisation": 0.01, "learning_rate": 0.4}
    for kind in TOYS:
        own = {"base": wrapped | passes} if kind.name == "wrapper-toy" else passes
        near = 1e-3 if kind.name == "several-toy" else 2e-5
        yield kind.name, (kind.name, own, {"clip": 16.0}, near)


CASES: dict[str, Case] = dict(cases())
FAST = ("pfedrec 7 1", "pfedrec 1000 1 rank 3")
"""Of one batch PLGC's bases and a regulariser, the others in the long tests."""
LONG = {f"plgc {name} 1000" for name in OVER if name not in (*BASES, "fedmf-err")} | {
    "gpfedrec {'pull': 0.0}", "gpfedrec {'batch_size': 1000}",
}  # fmt: skip


def marked(name):
    """Return a case for `parametrize`, in the part of the tests where it runs."""
    marks = [] if name in FAST else [pytest.mark.long if name in LONG else pytest.mark.slow]
    return pytest.param(name, marks=marks)


BEFORE_ROUNDING = [marked(name) for name in CASES if not name.endswith(" 16")]
ON_THE_GRID = [marked(name) for name, case in CASES.items() if case[3]]


@pytest.fixture(autouse=True, scope="module")
def toys():
    with registered():
        yield


def learner_of(kind, algorithm, update):
    users = people(kind.startswith("plgc"))
    grid = {} if kind == "fedrecgel" else {"clip": 8.0, "fraction_bits": 34}
    plan = plan_of(
        federation={"seed": SEED, "maximum_users": 64, "minimum_item_users": 1},
        algorithm={"name": kind.split("-")[0] if kind.startswith("plgc") else kind, **algorithm},
        update={"structure": "dense", **grid, **update},
    )
    return Learner(plan, 31 if kind.startswith("plgc") else 40, device="cpu"), users


def compare(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert_near(found[name], values, tolerance, name)


@pytest.mark.parametrize("case", BEFORE_ROUNDING)
def test_three_rounds_before_rounding(case):
    kind, algorithm, update, _ = CASES[case]
    learner, users = learner_of(kind, algorithm, update)
    shared, private = begin(learner, users)
    tensors, own = dict(shared.tensors), private
    for number, round_id in enumerate(ROUNDS, start=1):
        expected = TWINS[kind](learner, users, tensors, own, round_id, number, False)
        found = train_unrounded(learner, users, shared, private, round_id)
        compare(found.change, expected.change, 1e-9)
        assert np.array_equal(found.counts, expected.counts + np.zeros(learner.server.n_items))
        if expected.loss is not None:
            assert found.loss == pytest.approx(np.asarray(expected.loss), rel=1e-9)
        shared, private, tensors, own = (
            found.shared,
            found.private,
            expected.shared,
            expected.private,
        )
        compare(shared.tensors, tensors, 1e-9)
        compare(private, own, 1e-9)
        assert shared.trained == number


@pytest.mark.parametrize("case", ON_THE_GRID)
def test_three_rounds_on_the_grid(case):
    """In float32; each of the plain rounds starts where the trainer's does.

    Who comes too near a kink of a network takes no part. Adam divides by the root of squares, so
    that rounding of small gradients shows.
    """
    kind, algorithm, update, near = CASES[case]
    learner, users = learner_of(kind, algorithm, update)
    shared, private = learner.server.initial_shared(), learner.local.initial_private(users)
    for number, round_id in enumerate(ROUNDS, start=1):
        tensors = {k: v.astype(np.float32).astype(float) for k, v in shared.tensors.items()}
        own = {name: values.astype(float) for name, values in private.tensors.items()}
        expected = TWINS[kind](learner, users, tensors, own, round_id, number, True)
        assert expected.taking is None or expected.taking.sum() >= 6
        part = learner.contribute("train", round_id, shared, users, private, expected.taking)
        assert part.n_clipped == 0
        sums = learner.server.layout.changes_of(part.vector)
        found = {t.name: sums[t.name] * t.step for t in learner.server.layout.tensors}
        # Users of a network inside PLGC may be near one of its kinks.
        compare(found, expected.change, 2e-2 if kind == "plgc" else near)
        if kind == "fedrap" and found:
            # Also of the rows that hardly any user touched.
            apart = np.abs(found["item_embedding"] - expected.change["item_embedding"]).max()
            assert apart < 1e-5 * np.abs(tensors["item_embedding"]).max() * len(users)
        counts = part.vector[learner.server.layout.count_slice]
        assert np.array_equal(counts, expected.counts + np.zeros(len(counts)))
        private, shared = part.private, learner.server.apply("train", round_id, shared, part.vector)
        compare(shared.tensors, expected.shared, near)
        compare(private.tensors, expected.private, near)


@pytest.mark.slow
def test_whole_tables_of_plgc_where_some_sit_out():
    """A table begins as the version of its user's first round, and stays while the user does."""
    own = {"weight": 0.0, "upload": "table", "base": {"name": "fedmf", "dim": 4, "batch_size": 7}}
    own["base"] |= {"local_epochs": 2, **BASES["fedmf"]}
    learner, users = learner_of("plgc", own, {"clip": 64.0, "fraction_bits": 32})
    shared, private = begin(learner, users)
    tensors, mine = dict(shared.tensors), private
    taking = np.array([True, False, True, True, False, True, True])
    for round_id in ROUNDS:
        expected = plgc(learner, users, tensors, mine, round_id, 0, False, taking)
        before = {name: values.copy() for name, values in private.items()}
        found = train_unrounded(learner, users, shared, private, round_id, taking=taking)
        for name, values in before.items():
            assert np.array_equal(values[~taking], found.private[name][~taking]), name
        shared, private, tensors, mine = (
            found.shared,
            found.private,
            expected.shared,
            expected.private,
        )
        compare(shared.tensors, tensors, 1e-9)
        compare(private, mine, 1e-9)
        taking = np.roll(taking, 1)


@pytest.mark.slow
def test_changes_and_whole_tables_of_plgc_are_the_same_where_every_user_takes_part():
    versions = {}
    for upload in ("change", "table"):
        inner = {"name": "pfedrec", "dim": 4, "batch_size": 16, "local_epochs": 2}
        own = {"upload": upload, "projector_rate": 0.05, "base": inner | BASES["pfedrec"]}
        learner, users = learner_of("plgc", own, {"clip": 64.0, "fraction_bits": 32})
        shared, private = begin(learner, users)
        for round_id in ROUNDS:
            found = train_unrounded(learner, users, shared, private, round_id)
            shared, private = found.shared, found.private
        versions[upload] = shared.tensors["item_embedding"]
    assert_near(versions["table"], versions["change"], 1e-12, "G")
