"""Published costs and those here: sizes, encryption and times of CoLR, and space of PFedCLR.

CoLR's are its tables 2 and 3. In PFedCLR's table 6, the space of a model at the client and at the
server, all sizes are float32 numbers over 2^20 bytes, d = 16. With n users and m items:

- client: FedMF holds the item table and a user vector, (m + 1) d numbers. FedRAP holds a second
  table, (2 m + 1) d, and PFedCLR also A and B, (m + 1) d + r (m + d) with r = 2.
- server: the item table and one uploaded copy of each user, (n + 1) m d, the same for all three.

Every printed value follows from that to its last digit, if LastFM-2K has 1,269 users and 12,322
items. These remain after users with fewer than ten interactions are dropped. (The paper's table of
data has 1,600 and 12,454.) A coordinator of fedrec adds up uploads as they arrive and never holds n
copies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from fedrec.algorithms import FedMFSettings
from fedrec.data import generate, leave_one_out
from fedrec.errors import InternalError
from fedrec.ids import RoundId
from fedrec.plan.price import paper_numbers
from fedrec.plan.schema import Plan
from fedrec.protection import PROTECTIONS, ProtectionPlan, SegmentSpec, VectorSpec
from fedrec.protection.protection import in_one_step
from fedrec.protection.protection_plan import INDEX_BYTES
from fedrec.training.learner import Learner
from fedrec.training.user_half import Resources
from fedrec.updates.update import UpdateSettings
from fedrec_lab.simulation.federation import add_integers

N_ITEMS, DIM = 3706, 64
"""The items of MovieLens-1M, and the length of an item's row."""
CKKS_SLOTS = 32_768
"""Values in a ciphertext."""
CKKS_BLOCK_BYTES = 3 * 2 * 65_536 * 8 + 1_376
"""A ciphertext of that many values, fitted to the printed sizes."""
PAILLIER_VALUE_BYTES = 836.66
"""A ciphertext of one value, fitted to the printed sizes."""
FLOAT32_BYTES, FLOAT64_BYTES = 4, 8
PLAIN_FILE_BYTES = 430
"""A file's bytes besides its values, fitted to the printed sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One line of the table.

    Attributes:
        name: method, with the rank or the share of kept values.
        scheme: its encryption in the paper.
        n_values: numbers in an update.
        client_seconds, server_seconds: the printed seconds. They are the lowest and the highest if
            several lines are quoted together.
        cipher_kb, plain_kb: the printed size of an update, encrypted and in the clear.
        printed_ratio: the paper's Comm Ratio, one over the other.
    """

    name: str
    scheme: Literal["ckks", "paillier"]
    n_values: int
    client_seconds: float
    server_seconds: tuple[float, float]
    cipher_kb: int
    plain_kb: int
    printed_ratio: float

    @property
    def cipher_bytes(self) -> float:
        """The encrypted size according to the rules above."""
        if self.scheme == "ckks":
            return math.ceil(self.n_values / CKKS_SLOTS) * CKKS_BLOCK_BYTES
        return self.n_values * PAILLIER_VALUE_BYTES

    @property
    def plain_bytes(self) -> int:
        """The size in the clear according to the rules above."""
        value_bytes = FLOAT32_BYTES if self.scheme == "ckks" else FLOAT64_BYTES
        return self.n_values * value_bytes + PLAIN_FILE_BYTES

    @property
    def ratio(self) -> float:
        """The Comm Ratio according to the rules above."""
        return self.cipher_bytes / self.plain_bytes


def _row(name: str, scheme: Literal["ckks", "paillier"], per_item: int, *printed: float) -> CostRow:
    client, low, high, cipher, plain, ratio = printed
    return CostRow(
        name=name,
        scheme=scheme,
        n_values=N_ITEMS * per_item,
        client_seconds=client,
        server_seconds=(low, high),
        cipher_kb=int(cipher),
        plain_kb=int(plain),
        printed_ratio=ratio,
    )


def _topk(kept: int, client: float, server: float, *sizes: float) -> CostRow:
    return _row(f"topk/{kept}-of-{DIM}", "paillier", kept, client, server, server, *sizes)


COSTS = (
    _row("fedmf", "ckks", DIM, 0.93, 2.39, 2.39, 24587, 927, 26.52),
    _topk(1, 88.2, 88.1, 3028, 29, 103.09),
    _topk(2, 182, 186, 6056, 58, 103.83),
    _topk(4, 353, 365, 12112, 116, 104.20),
    _topk(8, 723, 751, 24225, 232, 104.40),
    _topk(16, 1450, 1484, 48448, 464, 104.49),
    _row("colr/rank-1", "ckks", 1, 0.07, 0.24, 0.25, 3073, 15, 206.31),
    _row("colr/rank-2", "ckks", 2, 0.07, 0.24, 0.25, 3073, 29, 104.63),
    _row("colr/rank-4", "ckks", 4, 0.07, 0.24, 0.25, 3073, 58, 52.69),
    _row("colr/rank-8", "ckks", 8, 0.07, 0.24, 0.25, 3073, 116, 26.44),
    _row("colr/rank-16", "ckks", 16, 0.15, 0.51, 0.51, 6147, 232, 26.49),
    _row("colr/rank-32", "ckks", 32, 0.30, 1.03, 1.03, 12293, 464, 26.51),
)


N_ROUNDS = 1000
_SLOWER = 7.0
_CLIENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """One line of the table.

    Attributes:
        name: method, with the rank or the share of kept values.
        update: the corresponding settings.
        link_minutes, computation_minutes, total_minutes: the printed minutes.
    """

    name: str
    update: UpdateSettings
    link_minutes: float
    computation_minutes: float
    total_minutes: float


def computation_minutes(client_seconds: float, server_seconds: float) -> float:
    """Return the paper's minutes of computation for a round's measured seconds.

    Args:
        client_seconds: T_sim of the slowest client.
        server_seconds: T_server.
    """
    return N_ROUNDS * (_SLOWER * client_seconds + _CLIENT_SECONDS + server_seconds) / 60


def _times(structure: str, *printed: tuple[int, float, float, float]) -> Iterator[TimeRow]:
    """Yield a row for each rank or, under topk, for each number of kept values out of `DIM`."""
    for number, link, computation, total in printed:
        name = f"{structure}/rank-{number}"
        chosen: dict[str, object] = {"rank": number}
        if structure == "topk":
            name, chosen = f"topk/{number}-of-{DIM}", {"ratio": number / DIM}
        elif structure == "dense":
            name, chosen = "fedmf", {}
        yield TimeRow(
            name=name,
            update=UpdateSettings.model_validate({"structure": structure, **chosen}),
            link_minutes=link,
            computation_minutes=computation,
            total_minutes=total,
        )


TIMES = (
    *_times("dense", (DIM, 80.43, 169.07, 249.50)),
    *_times(
        "colr",
        (1, 1.26, 169.18, 170.43),
        (2, 2.51, 169.21, 171.72),
        (4, 5.03, 169.27, 174.30),
        (8, 10.05, 169.29, 179.34),
        (16, 20.11, 169.30, 189.41),
        (32, 40.21, 169.38, 209.60),
    ),
    *_times(
        "svd",
        (1, 1.26, 169.49, 170.75),
        (2, 2.51, 169.50, 172.02),
        (4, 5.03, 169.53, 174.55),
        (8, 10.05, 169.59, 179.65),
        (16, 20.11, 169.64, 189.74),
        (32, 40.21, 169.60, 209.82),
    ),
    *_times(
        "topk",
        (1, 2.51, 169.76, 172.28),
        (2, 5.03, 169.79, 174.81),
        (4, 10.05, 169.82, 179.87),
        (8, 20.11, 169.92, 190.03),
        (16, 40.21, 170.14, 210.35),
    ),
)


T = TypeVar("T")

N_CLIENTS = 60
MOST_CLIENTS = 64
GRID_BITS = 20

_SETS = {
    "ckks": (
        ("ckks", "paper"), ("ckks", "lean"), ("bfv", "default"), ("paillier", "packed-3072"),
    ),
    "paillier": (
        ("paillier", "paper"), ("paillier", "single-3072"), ("paillier", "packed-3072"),
        ("bfv", "default"),
    ),
}  # fmt: skip
_SLOW = "paillier"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCosts:
    """A row under one of fedrec's parameter sets.

    Attributes:
        cipher_bytes: an encrypted update, exactly.
        plain_bytes: the same update without protection, exactly.
        client_seconds: protecting an update and revealing a sum. None if nothing was timed.
        server_seconds: adding the updates of `N_CLIENTS` clients. None if nothing was timed.
        sampled_values: number of timed values, from which seconds are scaled up. 0 for all.
    """

    protection: str
    preset: str
    cipher_bytes: int
    plain_bytes: int
    client_seconds: float | None = None
    server_seconds: float | None = None
    sampled_values: int = 0

    @property
    def ratio(self) -> float:
        """The paper's Comm Ratio: an encrypted update over the same update without protection."""
        return self.cipher_bytes / self.plain_bytes


def own_costs(row: CostRow, *, sample: int, timed: bool = True) -> tuple[OwnCosts, ...]:
    """Return a row's costs under each of the sets that it can be combined with.

    Args:
        sample: number of ciphertexts to time if each takes milliseconds. The rest is scaled.
        timed: whether to measure seconds at all.
    """
    return tuple(_cost(row, name, preset, sample, timed) for name, preset in _SETS[row.scheme])


def _cost(row: CostRow, name: str, preset: str, sample: int, timed: bool) -> OwnCosts:
    spec = _spec(row.n_values)
    plan = PROTECTIONS[name].plan(spec, preset=preset)
    with_index = row.scheme == "paillier" and plan.n_blocks == plan.n_values
    indices = INDEX_BYTES * row.n_values if with_index else 0
    costs = partial(
        OwnCosts,
        protection=name,
        preset=preset,
        cipher_bytes=plan.message_bytes + indices,
        plain_bytes=PROTECTIONS["none"].plan(spec).message_bytes + indices,
    )
    if not timed:
        return costs()
    n_values = row.n_values
    if name == _SLOW and plan.n_blocks > sample:
        n_values = sample * (row.n_values // plan.n_blocks)
    client, server, timed_plan = _seconds(name, preset, n_values)
    share = plan.n_blocks / timed_plan.n_blocks
    return costs(
        client_seconds=client * share,
        server_seconds=server * share * N_CLIENTS,
        sampled_values=n_values if n_values < row.n_values else 0,
    )


def _spec(n_values: int) -> VectorSpec:
    values = SegmentSpec(name="values", length=n_values, max_abs_sum=MOST_CLIENTS << GRID_BITS)
    return VectorSpec(segments=(values,), max_summands=MOST_CLIENTS)


def _seconds(name: str, preset: str, n_values: int) -> tuple[float, float, ProtectionPlan]:
    """Return the seconds of one client, and those of adding one update."""
    spec = _spec(n_values)
    kind = PROTECTIONS[name]
    protection = in_one_step(kind(spec, kind.plan(spec, preset=preset)))
    context, secret = protection.generate()
    with secret:
        member = protection.member(context, secret)
    random = np.random.default_rng(0)
    vector = random.integers(-(1 << GRID_BITS), 1 << GRID_BITS, n_values, dtype=np.int64)
    # The first message also makes a member's tables, once per process.
    first = member.protect(vector)
    message, protecting = _timed(lambda: member.protect(vector))
    total = protection.accumulator(context)
    total.add(first)
    _, adding = _timed(lambda: total.add(message))
    found, revealing = _timed(lambda: member.reveal(total.finish(), 2))
    if not np.array_equal(found, 2 * vector):
        raise InternalError(f"A sum under {name}/{preset} was wrong.")
    member.close()
    return protecting + revealing, adding, protection.chosen


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    found = action()
    return found, time.perf_counter() - began


INTERACTIONS_PER_USER = 165
N_TIMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """A row's times on this machine.

    Attributes:
        link_minutes: the exact time according to the paper's model.
        client_seconds: the training time of the slowest client, or None if nothing was timed.
        server_seconds: the time to add the updates of `N_CLIENTS` clients and apply their sum.
        computation_minutes: the result of the paper's model for both.
    """

    link_minutes: float
    client_seconds: float | None = None
    server_seconds: float | None = None
    computation_minutes: float | None = None


def own_times(row: TimeRow, *, timed: bool = True) -> OwnTimes:
    """Return a row's times on this machine.

    Args:
        timed: whether to measure seconds at all.
    """
    plan = _plan(row)
    learner = Learner(plan, N_ITEMS, device="cpu", resources=Resources(threads=1))
    numbers = paper_numbers(learner.server.algorithm)
    assert numbers is not None
    link = numbers.link_minutes(N_ROUNDS)
    if not timed:
        return OwnTimes(link_minutes=link)
    data = generate(
        n_users=N_TIMED + 1,
        n_items=N_ITEMS,
        n_clusters=1,
        interactions_per_user=INTERACTIONS_PER_USER,
        seed=1,
    )
    users = leave_one_out(data.interactions, data.catalogue)
    shared = learner.server.initial_shared()
    seconds, vector = [], np.zeros(0, dtype=np.int64)
    for number in range(N_TIMED + 1):
        own = users.select(np.array([number]))
        private = learner.local.initial_private(own)
        began = time.perf_counter()
        vector = learner.contribute("train", RoundId(2), shared, own, private).vector
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    total = add_integers([vector] * N_CLIENTS, learner.server.layout.vector_spec)
    learner.server.apply("train", RoundId(2), shared, total)
    server = time.perf_counter() - began
    # The first client also compiles the training code, once per process.
    client = max(seconds[1:])
    return OwnTimes(
        link_minutes=link,
        client_seconds=client,
        server_seconds=server,
        computation_minutes=computation_minutes(client, server),
    )


def _plan(row: TimeRow) -> Plan:
    # The timed round measures nothing, and every item is trained, as in the paper.
    return Plan.model_validate(
        {
            "federation": {"seed": 1, "minimum_item_users": 1},
            "algorithm": FedMFSettings(
                dim=DIM, learning_rate=0.5, regularisation=5e-4, local_epochs=2, batch_size=256
            ).model_dump(),
            "update": row.update.model_dump(),
            "protection": {"name": "none"},
            "evaluation": {"every_rounds": 1000},
            "rounds": {"total": N_ROUNDS},
        }
    )


SPACE_DIM, RANK = 16, 2
_NUMBER_BYTES, _MB = 4, 1 << 20

Method = Literal["fedmf", "fedrap", "pfedclr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRow:
    """One method on one data set.

    Attributes:
        client_mb, server_mb: the printed space.
    """

    method: Method
    dataset: str
    n_users: int
    n_items: int
    client_mb: float
    server_mb: float

    @property
    def client_bytes(self) -> int:
        """The space at a client, according to the rules above."""
        numbers = (self.n_items + 1) * SPACE_DIM
        if self.method == "fedrap":
            numbers += self.n_items * SPACE_DIM
        elif self.method == "pfedclr":
            numbers += RANK * (self.n_items + SPACE_DIM)
        return numbers * _NUMBER_BYTES

    @property
    def server_bytes(self) -> int:
        """The space at a server that keeps every upload, according to the rules above."""
        return (self.n_users + 1) * self.n_items * SPACE_DIM * _NUMBER_BYTES

    @property
    def name(self) -> str:
        """The name of method and data set."""
        return f"{self.method}/{self.dataset}"

    @property
    def by_rule(self) -> tuple[float, float]:
        """The sizes according to the rules, in the paper's unit."""
        return self.client_bytes / _MB, self.server_bytes / _MB


_DATA = {
    "filmtrust": (1002, 2042, 125.0077),
    "ml-100k": (943, 1682, 96.9121),
    "ml-1m": (6040, 3706, 1366.4518),
    "hetrec2011": (2113, 10109, 1304.3473),
    "lastfm-2k": (1269, 12322, 955.1355),
}
_CLIENT: dict[Method, tuple[float, ...]] = {
    "fedmf": (0.1247, 0.1027, 0.2263, 0.6171, 0.7521),
    "fedrap": (0.2493, 0.2054, 0.4525, 1.2341, 1.5042),
    "pfedclr": (0.1404, 0.1157, 0.2547, 0.6943, 0.8463),
}

SPACE = tuple(
    SpaceRow(
        method=method,
        dataset=dataset,
        n_users=n_users,
        n_items=n_items,
        client_mb=client_mb,
        server_mb=server_mb,
    )
    for method, printed in _CLIENT.items()
    for (dataset, (n_users, n_items, server_mb)), client_mb in zip(
        _DATA.items(), printed, strict=True
    )
)
