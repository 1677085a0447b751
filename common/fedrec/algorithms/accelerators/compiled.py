"""Parts that compiled code shares: compilation, samples, inner products and rounding.

Nothing is compiled with `fastmath`. It lets a compiler reorder sums, and the order would differ
between just compiled code, which inlines functions, and code from its cache. Vector units are used
explicitly: by loops over independent values, `fused` for a product and a sum rounded once, and
`dots` for inner products. Their bits follow from the source.

Compiled functions carry no annotations: numba derives the types from the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

from fedrec.algorithms.algorithm import ChunkResult
from fedrec.compiling import COMPILED
from fedrec.random_streams import Purpose, stream_key, user_stream

if TYPE_CHECKING:
    import torch

    from fedrec.algorithms.cohort import Chunk


_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_ONE = np.float32(1.0)
_LANES = 8
"""Partial sums of an inner product: one vector of most processors, half a vector of some."""
_PLACE_BITS = 21
"""A user has fewer samples than 2^21. 42 bits of the word decide the order before the place does.
"""


class Sampled(NamedTuple):
    """The data from which compiled code draws a chunk's samples.

    See `fedrec.algorithms.cohort.Chunk`.

    Attributes:
        negative_keys: each user's stream of negatives, int64 (n_users,).
        shuffle_keys: each epoch's and user's shuffle, int64 (epochs, n_users).
    """

    pointers: NDArray[np.int64]
    positives: NDArray[np.int64]
    excluded_pointers: NDArray[np.int64]
    excluded: NDArray[np.int64]
    negative_keys: NDArray[np.int64]
    shuffle_keys: NDArray[np.int64]

    @classmethod
    def of(cls, chunk: Chunk, *, seed: int, round_id: int, epochs: int) -> Sampled:
        """Return the tables and streams of a chunk in the processor's memory."""
        keys = chunk.user_keys.numpy()

        def stream(purpose: Purpose, counter: int = 0) -> NDArray[np.int64]:
            return np.asarray(user_stream(stream_key(seed, purpose, round_id, counter), keys))

        return cls(
            pointers=chunk.pointers.numpy(),
            positives=chunk.positives.numpy(),
            excluded_pointers=chunk.excluded_pointers.numpy(),
            excluded=chunk.excluded.numpy(),
            negative_keys=stream(Purpose.NEGATIVES),
            shuffle_keys=np.stack([stream(Purpose.SHUFFLE, epoch) for epoch in range(epochs)]),
        )


class Trained(NamedTuple):
    """The results of training a chunk's users.

    Attributes:
        finite: whether all values were finite.
        sums: the tables with the users' contributions, summed over the parts.
        loss: float32 (n_users,).
        clipped: number of clipped values of each user, int64 (n_users,).
    """

    finite: bool
    sums: list[NDArray[np.int64]]
    loss: NDArray[np.float32]
    clipped: NDArray[np.int64]

    def result(self, private: dict[str, torch.Tensor]) -> ChunkResult:
        """Return it in the trainer's form."""
        import torch

        loss, clipped = map(torch.from_numpy, (self.loss, self.clipped))
        return ChunkResult(private=private, loss=loss, clipped=clipped)


def train_in_parts(
    train: Callable[..., bool],
    given: tuple[object, ...],
    n_users: int,
    threads: int,
    shapes: tuple[tuple[int, ...], ...],
) -> Trained:
    """Train every part of the users on its own thread.

    Args:
        train: takes the part, the number of parts, the given values, a table of each shape to add
            to, and arrays for each user's loss and clipped values. Returns whether all values were
            finite.
    """
    parts = max(1, min(threads, n_users))
    tables = [np.zeros((parts, *shape), dtype=np.int64) for shape in shapes]
    loss, clipped = np.zeros(n_users, dtype=np.float32), np.zeros(n_users, dtype=np.int64)

    def work(part: int) -> bool:
        own = (table[part] for table in tables)
        return bool(train(part, parts, *given, *own, loss, clipped))

    if parts == 1:
        finite = work(0)
    else:
        with ThreadPoolExecutor(parts) as pool:
            finite = all(list(pool.map(work, range(parts))))
    return Trained(finite, [table.sum(axis=0) for table in tables], loss, clipped)


@intrinsic
def fused(typing_context, one, other, addend):
    """Return one * other + addend, rounded once, on every processor (in software if needed)."""

    def generate(context, builder, signature, values):
        return builder.fma(*values)

    return one(one, one, one), generate


@intrinsic
def dots(typing_context, ones, others):
    """Return the inner products of each array of a tuple with each of another, as a flat tuple.

    All are float32, contiguous and as long as the first. Place k belongs to partial sum k mod 8.
    The eight sums are added in halves, then places after the last whole eight one by one.
    """
    n_ones, n_others = len(ones), len(others)
    for kind in (*ones, *others):
        if kind.layout != "C" or kind.ndim != 1 or kind.dtype != types.float32:
            raise TypingError(f"dots found {kind}, but takes contiguous float32 arrays only.")

    def generate(context, builder, signature, values):
        (one_type, other_type), (one_value, other_value) = signature.args, values
        left = [
            context.make_array(one_type.dtype)(context, builder, value)
            for value in cgutils.unpack_tuple(builder, one_value, n_ones)
        ]
        right = [
            context.make_array(other_type.dtype)(context, builder, value)
            for value in cgutils.unpack_tuple(builder, other_value, n_others)
        ]
        length = builder.extract_value(left[0].shape, 0)
        vector, index = ir.VectorType(ir.FloatType(), _LANES), length.type
        whole = builder.and_(length, index(-_LANES))
        pairs = list(product(range(n_ones), range(n_others)))

        def add_products(sums, begin, end, step, kind):
            fma = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(kind, [kind] * 3),
                f"llvm.fma.v{_LANES}f32" if kind is vector else "llvm.fma.f32",
            )
            with cgutils.for_range_slice(builder, begin, end, index(step)) as (place, _):
                loaded = [
                    builder.load(
                        builder.bitcast(builder.gep(array.data, [place]), kind.as_pointer()),
                        align=4,
                    )
                    for array in (*left, *right)
                ]
                for total, (one, other) in zip(sums, pairs, strict=True):
                    terms = (loaded[one], loaded[n_ones + other], builder.load(total))
                    builder.store(builder.call(fma, terms), total)

        lanes = [cgutils.alloca_once_value(builder, vector(None)) for _ in pairs]
        add_products(lanes, index(0), whole, _LANES, vector)
        totals = []
        for total in map(builder.load, lanes):
            width = _LANES
            while width > 1:
                width //= 2
                mask = ir.VectorType(ir.IntType(32), width)
                total = builder.fadd(
                    builder.shuffle_vector(total, total, mask(list(range(width)))),
                    builder.shuffle_vector(total, total, mask(list(range(width, 2 * width)))),
                )
            only = builder.extract_element(total, ir.IntType(32)(0))
            totals.append(cgutils.alloca_once_value(builder, only))
        add_products(totals, whole, length, 1, ir.FloatType())
        return context.make_tuple(
            builder, signature.return_type, [builder.load(total) for total in totals]
        )

    return types.UniTuple(types.float32, n_ones * n_others)(ones, others), generate


@intrinsic
def row_at(typing_context, table, index):
    """Return a row of a C-contiguous table that the caller keeps alive.

    `table[index]` counts a reference to the table, and two threads that count references to one
    table wait for each other. The caller checks bounds. The row must not outlive the arguments of
    the function that uses it.
    """
    if table.layout != "C" or table.ndim != 2:
        raise TypingError(f"row_at found {table}, but takes a contiguous table only.")
    result = types.Array(table.dtype, 1, "C")

    def generate(context, builder, signature, values):
        whole = context.make_array(signature.args[0])(context, builder, values[0])
        place = context.cast(builder, values[1], signature.args[1], types.intp)
        _, length = cgutils.unpack_tuple(builder, whole.shape, 2)
        found = context.make_array(result)(context, builder)
        populate_array(
            found,
            data=builder.gep(whole.data, [builder.mul(place, length)]),
            shape=[length],
            strides=[whole.itemsize],
            itemsize=whole.itemsize,
            meminfo=None,
        )
        return found._getvalue()

    return result(table, index), generate


class Space(NamedTuple):
    """Work memory for the current user.

    Attributes:
        drawn: items of the samples, positives first, int64.
        words: the words of a shuffle, int64.
        order: the shuffled places of the samples, int64.
        heads: the place of each bucket's next word, int64.
        row_of: an item's row, or -1 if the user does not touch it, int32 (n_items,).
        row_item: a row's item, int64.
        rows: float32 (largest number of rows that a user can touch, width).
    """

    drawn: NDArray[np.int64]
    words: NDArray[np.int64]
    order: NDArray[np.int64]
    heads: NDArray[np.int64]
    row_of: NDArray[np.int32]
    row_item: NDArray[np.int64]
    rows: NDArray[np.float32]


@njit(**COMPILED)
def open_space(pointers, per_positive, n_items, width):
    """Return work memory that is large enough for any of the users."""
    longest = 0
    for user in range(len(pointers) - 1):
        longest = max(longest, pointers[user + 1] - pointers[user])
    capacity = longest * (1 + per_positive)
    n_distinct = min(capacity, n_items)
    return Space(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(2 * capacity + 2, dtype=np.int64),
        np.full(n_items, -1, dtype=np.int32),
        np.empty(n_distinct, dtype=np.int64),
        np.empty((n_distinct, width), dtype=np.float32),
    )


@njit(inline="always")
def _mix(word):
    """Return splitmix64's output function. See `fedrec.random_streams.mix`."""
    word = word + _GOLDEN
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * _FIRST
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@njit(**COMPILED)
def _draw(drawn, positives, excluded, n_items, key, per_positive):
    """Fill `drawn` with the positives and then the negatives. See `samples.draw_samples`."""
    n_positives = len(positives)
    drawn[:n_positives] = positives
    free = n_items - len(excluded)
    for counter in range(n_positives * per_positive):
        word = (_mix(key + counter) >> 32) & 0xFFFFFFFF
        chosen = (word * free) >> 32
        # Count, without a branch, the excluded items that have at most `chosen` free items below
        # them.
        low, left = 0, len(excluded)
        while left > 1:
            half = left >> 1
            low += half if excluded[low + half - 1] - (low + half - 1) <= chosen else 0
            left -= half
        if left and excluded[low] - low <= chosen:
            low += 1
        drawn[n_positives + counter] = chosen + low


@njit(**COMPILED)
def begin_user(user, sampled, per_positive, items, has_basis, space):
    """Draw a user's samples and give each distinct item a row. Return (samples, rows).

    A row begins as the item's row, or with zeros if there is a basis between the two.
    """
    own = sampled.positives[sampled.pointers[user] : sampled.pointers[user + 1]]
    others = sampled.excluded[sampled.excluded_pointers[user] : sampled.excluded_pointers[user + 1]]
    drawn, row_of, row_item, rows = space.drawn, space.row_of, space.row_item, space.rows
    n_samples, n_rows = len(own) * (1 + per_positive), 0
    _draw(drawn, own, others, len(items), sampled.negative_keys[user], per_positive)
    for place in range(n_samples):
        item = drawn[place]
        if row_of[item] < 0:
            row_of[item] = n_rows
            row_item[n_rows] = item
            values = row_at(rows, n_rows)
            if has_basis:
                values[:] = 0.0
            else:
                values[:] = row_at(items, item)
            n_rows += 1
    return n_samples, n_rows


@njit(**COMPILED)
def shuffled(n_samples, key, space):
    """Return the places of the samples in the order of their words. See `samplers.steps`.

    Words are distributed evenly. With as many buckets as words, by their first bits, almost nothing
    remains to be sorted.
    """
    words, order, heads = space.words[:n_samples], space.order[:n_samples], space.heads
    shift = 42 + _PLACE_BITS
    while (1 << (42 + _PLACE_BITS - shift)) < n_samples:
        shift -= 1
    heads[: (1 << (42 + _PLACE_BITS - shift)) + 1] = 0
    for place in range(n_samples):
        word = (((_mix(key + place) >> 22) & 0x3FFFFFFFFFF) << _PLACE_BITS) | place
        words[place] = word
        heads[(word >> shift) + 1] += 1
    for bucket in range(1 << (42 + _PLACE_BITS - shift)):
        heads[bucket + 1] += heads[bucket]
    for place in range(n_samples):
        word = words[place]
        order[heads[word >> shift]] = word
        heads[word >> shift] += 1
    for place in range(1, n_samples):
        word, before = order[place], place
        while before > 0 and order[before - 1] > word:
            order[before] = order[before - 1]
            before -= 1
        order[before] = word
    for place in range(n_samples):
        order[place] &= (1 << _PLACE_BITS) - 1
    return order


@njit(**COMPILED)
def error_of(score, is_positive):
    """Return (sigmoid(score) - label, binary cross-entropy)."""
    small = np.float32(math.exp(-abs(score)))
    loss = np.float32(math.log1p(small))
    if score >= 0:
        error, loss_of_negative = _ONE / (_ONE + small), loss + score
    else:
        error, loss_of_negative = small / (_ONE + small), loss
    if is_positive:
        return error - _ONE, loss_of_negative - score
    return error, loss_of_negative


@njit(inline="always")
def in_steps(value, scale, bound):
    """Return a value in grid steps, and the same clipped to the public range, float32."""
    units = np.float32(np.rint(value * scale))
    return units, units if abs(units) <= bound else (bound if units > 0 else -bound)


@njit(**COMPILED)
def add_row(values, weight, scale, bound, total):
    """Round a row and add it with this multiplicity.

    Return (clipped values, values that aren't finite).
    """
    clipped, not_finite = 0, 0
    for k in range(len(values)):
        units, inside = in_steps(values[k], scale, bound)
        clipped += inside != units
        not_finite += not abs(units) < np.inf
        total[k] += weight * np.int64(inside)
    return clipped, not_finite


@njit(**COMPILED)
def hand_over(n_rows, items, has_basis, weight, scale, bound, space, change, counts):
    """Round a user's rows, add them and remove them. Return (clipped values, finite)."""
    clipped, not_finite = 0, 0
    row_of, row_item, rows = space.row_of, space.row_item, space.rows
    for place in range(n_rows):
        item, values = row_item[place], row_at(rows, place)
        row_of[item] = -1
        counts[item] += 1
        if not has_basis:
            before = row_at(items, item)
            for k in range(len(values)):
                values[k] -= before[k]
        over, beyond = add_row(values, weight, scale, bound, row_at(change, item))
        clipped += over
        not_finite += beyond
    return clipped, not_finite == 0


@njit(**COMPILED)
def hand_over_table(table, active, items, weight, scale, bound, room, change):
    """Round the change of a user's whole own table and add it. Return (clipped values, finite).

    Args:
        active: rows of the active items in the table.
        room: work memory, (dim,).
    """
    clipped, not_finite = 0, 0
    for item in range(len(active)):
        own, version = row_at(table, active[item]), row_at(items, item)
        for c in range(len(room)):
            room[c] = own[c] - version[c]
        over, beyond = add_row(room, weight, scale, bound, row_at(change, item))
        clipped += over
        not_finite += beyond
    return clipped, not_finite == 0
