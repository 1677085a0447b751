"""The trainer and PLGC's plain loop agree, over every base and with every regulariser."""

import numpy as np
import pytest
import torch
from conformance.unrounded import assert_near, begin, train_unrounded
from reference.plain_plgc import NETWORK, Rule, visit

from fedrec.data import generate, leave_one_out
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner

pytestmark = pytest.mark.slow

N_ITEMS, DIM, EPOCHS, GAMMA = 31, 4, 2, 0.02
OWN = "own_item_embedding"
LAYERS = [f"{name}_{layer}" for layer in (1, 2, 3, 4) for name in ("weight", "bias")]
BASES = {
    "fedmf": {"learning_rate": 0.4, "regularisation": GAMMA},
    "pfedrec": {"learning_rate": 0.3, "item_rate_scale": 0.1},
    "fedncf": {"learning_rate": 0.05, "user_rate_scale": 2.0, "item_rate_scale": 0.1},
}
CASES = {
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


@pytest.fixture(scope="module")
def users():
    """Of 4 to 10 training items, so that items come twice and minibatches differ."""
    data = generate(n_users=7, n_items=N_ITEMS, n_clusters=2, interactions_per_user=12, seed=3)
    place = np.arange(len(data.interactions))
    return leave_one_out(data.interactions.take(place % 12 >= place // 12), data.catalogue)


def learner_of(base, own, batch_size, **update):
    return Learner(
        Plan.model_validate(
            {
                "federation": {"seed": 7, "maximum_users": 64, "minimum_item_users": 1},
                "algorithm": {
                    "name": "plgc",
                    "projector_rate": 0.05,
                    "base": {
                        "name": base, "dim": DIM, "batch_size": batch_size,
                        "local_epochs": EPOCHS, **BASES[base],
                    },
                    **own,
                },
                "update": {"structure": "dense", "clip": 64.0, "fraction_bits": 32} | update,
            }
        ),
        N_ITEMS,
        device="cpu",
    )  # fmt: skip


def rule_of(learner):
    settings = learner.plan.algorithm
    base, inner = settings.base.name, settings.base
    network = ()
    if settings.weight and settings.regulariser == "err" and settings.projector:
        network = NETWORK
    rates = dict.fromkeys(network, settings.projector_rate)
    rates |= dict.fromkeys(LAYERS, inner.learning_rate)
    rates |= {name: inner.learning_rate for name in ("user_embedding", "user_bias", "C")}
    if base == "pfedrec":
        rates["C"] = inner.learning_rate * N_ITEMS * inner.item_rate_scale
        steps = (("user_embedding", "user_bias"), ("C", *network))
    elif base == "fedncf":
        rates["user_embedding"] = inner.learning_rate * inner.user_rate_scale
        rates["C"] = inner.learning_rate * N_ITEMS * inner.item_rate_scale
        steps = (("user_embedding", "C", *LAYERS, *network),)
    else:
        steps = (("user_embedding", "C", *network),)
    return Rule(
        base=base, steps=steps, rates=rates, epochs=EPOCHS, batch_size=inner.batch_size,
        gamma=GAMMA if base == "fedmf" else 0.0, per_occurrence=base == "fedmf",
        mixing=settings.mixing, regulariser=settings.regulariser, weight=settings.weight,
        off=settings.off_weight, temperature=settings.temperature,
    )  # fmt: skip


class Plain:
    """The plain federation: everybody's state, the version and the network."""

    def __init__(self, learner, users):
        self.rule, self.users = rule_of(learner), users
        self.start(*begin(learner, users))
        for own in self.own:
            own["C"] = None

    def start(self, shared, private):
        """Go on from what the trainer has."""
        tensors = {name: torch.tensor(np.float64(v)) for name, v in shared.tensors.items()}
        self.g = tensors.pop("item_embedding")
        self.net = tensors
        names = {name.removeprefix(f"{OWN}_"): name for name in private}
        self.own = [
            {short: torch.tensor(np.float64(private[name][index])) for short, name in names.items()
             if short not in ("begun", "personal_scores", OWN)}
            | {"C": torch.tensor(np.float64(private[OWN][index]))}
            for index in range(len(self.users))
        ]  # fmt: skip

    def round(self, round_id, taking=None):
        """Everybody trains; G becomes the mean of tables, by training items."""
        chosen = range(len(self.users)) if taking is None else np.nonzero(taking)[0]
        table, layers, total = 0.0, {name: 0.0 for name in self.net}, 0
        self.scores = {}
        for index in chosen:
            positives = self.users.train_of(index).tolist()
            key = int(self.users.user_keys()[index])
            own, net, scores = visit(
                self.rule, self.own[index], self.net, self.g, key, positives, seed=7,
                round_id=round_id,
            )  # fmt: skip
            self.own[index], self.scores[index] = own, scores.numpy()
            table, total = table + len(positives) * own["C"], total + len(positives)
            layers = {name: layers[name] + len(positives) * net[name] for name in net}
        self.g = table / total
        self.net = {name: value / total for name, value in layers.items()}

    def check(self, shared, private, tolerance):
        assert_near(shared.tensors["item_embedding"], self.g.numpy(), tolerance, "G")
        for name, value in self.net.items():
            assert_near(shared.tensors[name], value.numpy(), tolerance, name)
        for short in self.own[0]:
            full = {"C": OWN}.get(short, f"{OWN}_{short}" if short in NETWORK else short)
            wanted = np.stack([own[short].numpy() for own in self.own])
            assert_near(private[full], wanted, tolerance, short)
        scores = np.stack([private["personal_scores"][index] for index in self.scores])
        assert_near(scores, np.stack(list(self.scores.values())), tolerance, "scores")


@pytest.mark.parametrize(
    ("case", "batch_size"),
    [(case, 7) for case in CASES]
    # Of one batch the bases and a regulariser here, the others in the long tests.
    + [(case, 1000) for case in (*BASES, "fedmf-err")]
    + [
        pytest.param(case, 1000, marks=pytest.mark.long)
        for case in CASES
        if case not in (*BASES, "fedmf-err")
    ],
)
def test_three_rounds_before_rounding(users, case, batch_size):
    learner = learner_of(*CASES[case], batch_size)
    plain = Plain(learner, users)
    shared, private = begin(learner, users)
    for round_id in (4, 5, 6):
        plain.round(round_id)
        found = train_unrounded(learner, users, shared, private, round_id)
        shared, private = found.shared, found.private
        plain.check(shared, private, 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_on_the_grid(users, case):
    """In float32; the plain loop has no grid, and goes on from its own states."""
    tolerance = 1e-5 if not CASES[case][1].get("weight", 0.5) else 1e-3
    learner = learner_of(*CASES[case], 16)
    plain = Plain(learner, users)
    shared, private = learner.initial_shared(), learner.initial_private(users)
    for round_id in (4, 5, 6):
        plain.round(round_id)
        part = learner.contribute("train", round_id, shared, users, private)
        assert part.n_clipped == 0
        shared, private = learner.apply("train", round_id, shared, part.vector), part.private
        plain.check(shared, private.tensors, tolerance)


def test_whole_tables_where_some_sit_out(users):
    """A table begins as the version of its user's first round, and stays while the user does."""
    learner = learner_of("fedmf", {"weight": 0.0, "upload": "table"}, 7)
    plain = Plain(learner, users)
    shared, private = begin(learner, users)
    taking = np.array([True, False, True, True, False, True, True])
    for round_id in (4, 5, 6):
        plain.round(round_id, taking)
        before = {name: values.copy() for name, values in private.items()}
        found = train_unrounded(learner, users, shared, private, round_id, taking=taking)
        for name, values in before.items():
            assert np.array_equal(values[~taking], found.private[name][~taking]), name
        shared, private = found.shared, found.private
        assert private["begun"].tolist() == [own["C"] is not None for own in plain.own]
        assert_near(shared.tensors["item_embedding"], plain.g.numpy(), 1e-9, "G")
        for index, own in enumerate(plain.own):
            if own["C"] is None:
                assert not private[OWN][index].any()
            else:
                assert_near(private[OWN][index], own["C"].numpy(), 1e-9, "C")
        taking = np.roll(taking, 1)


def test_changes_and_whole_tables_are_the_same_where_everybody_takes_part(users):
    versions = {}
    for upload in ("change", "table"):
        learner = learner_of("pfedrec", {"upload": upload}, 16)
        shared, private = begin(learner, users)
        for round_id in (4, 5, 6):
            found = train_unrounded(learner, users, shared, private, round_id)
            shared, private = found.shared, found.private
        versions[upload] = shared.tensors["item_embedding"]
    assert_near(versions["table"], versions["change"], 1e-12, "G")
