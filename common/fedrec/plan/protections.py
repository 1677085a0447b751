"""Facts about protections for the reader of a plan: descriptions, prices, and impossible rounds.

A protection itself defines how vectors are summed (`fedrec.protection.protection`). Nothing here
changes its bytes. A protection without an entry in `ABOUT` gets the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from fedrec.errors import SettingsError
from fedrec.protection import ProtectionPlan, ProtectionSettings, VectorSpec
from fedrec.protection.masks.terms import MAX_CLIENTS, GraphParameters, parameters_for
from fedrec.protection.masks.words import plan_masks

DECRYPTION_SECONDS = 0.03
"""For one Paillier ciphertext, with a margin for a machine that has other work."""
MULTIPLICATION_SECONDS = 0.0001
"""For adding one Paillier ciphertext to a sum, which multiplies it."""
FETCHED_BYTES_PER_SECOND = 100_000.0
"""A key holder's line is assumed to be this slow."""


def opening_seconds(plan: ProtectionPlan, n_summands: int, *, adds_up: bool) -> float:
    """Return the seconds that a key holder needs to fetch and open a sum of messages.

    Args:
        adds_up: whether it fetches and adds up the messages, rather than fetching the sum.
    """
    n_blocks = plan.expected_blocks(n_summands)
    fetched, seconds = plan.sum_bytes(n_blocks), DECRYPTION_SECONDS * n_blocks
    if adds_up:
        fetched = n_summands * plan.message_bytes
        seconds += MULTIPLICATION_SECONDS * n_summands * plan.n_blocks
    return seconds + fetched / FETCHED_BYTES_PER_SECOND


def described(chosen: ProtectionPlan) -> tuple[tuple[str, str], ...]:
    """Return the rows of a price table: what, and how much with its unit."""
    rows = [
        ("protection", f"{chosen.protection}, preset {chosen.preset}"),
        ("sums", "exact integers"),
        ("message", f"{chosen.message_bytes} bytes for {chosen.n_values} values"),
        ("per value", f"{chosen.message_bytes / chosen.n_values:.2f} bytes"),
        ("most messages in a sum", str(chosen.max_summands)),
    ]
    if chosen.poly_modulus_degree:
        rows += _encryption(chosen)
    elif chosen.security_bits and not chosen.key_bits:
        by = f": {chosen.primitives}" if chosen.primitives else ""
        rows.append(("security", f"{chosen.security_bits} bits{by}"))
    if chosen.n_tags:
        of = "of each message" if chosen.entries else "in each block"
        rows.append(("tags", f"{chosen.n_tags} {of} bind a sum to its messages"))
    if chosen.key_bits:
        rows += [
            ("key", f"modulus of {chosen.key_bits} bits"),
            ("security", f"{chosen.security_bits} bits, classical"),
            ("blocks", f"{chosen.n_blocks} of {chosen.frame_bytes} bytes"),
        ]
        if chosen.entries:
            rows.append(
                (
                    "entries",
                    f"{chosen.entries} of {chosen.n_places} values, a block and an index in the "
                    f"clear each, all others in {chosen.n_blocks - chosen.entries} blocks",
                )
            )
        else:
            filled = chosen.n_values / chosen.n_blocks
            rows.append(("values in a block", f"{filled:.1f} on average"))
    return tuple(rows)


def _encryption(chosen: ProtectionPlan) -> list[tuple[str, str]]:
    primes = " ".join(map(str, chosen.coeff_mod_bit_sizes))
    certainty = "always" if chosen.proof == "worst case" else "except with a chance below 2^-40"
    rows = [
        ("ring", f"N = {chosen.poly_modulus_degree}, primes of [{primes}] bits"),
        ("security", f"{chosen.security_bits} bits, classical"),
        ("blocks", f"{chosen.n_blocks} of {chosen.frame_bytes} bytes"),
        ("slots", f"{chosen.n_slots} of limbs of {chosen.limb_bits} bits")
        if chosen.limb_bits
        else ("slots", f"{chosen.n_slots}, one for each value"),
        ("error before rounding", f"below {chosen.error_bound:.2g} of a grid unit, {certainty}"),
        ("to spare", f"{chosen.headroom_bits:.1f} bits"),
    ]
    if chosen.plain_modulus is not None:
        rows.append(("plain modulus", str(chosen.plain_modulus)))
    if chosen.scale_bits is not None:
        rows.append(("scale", f"2^{chosen.scale_bits} for one grid unit"))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRound:
    """The facts about a round that a protection needs for its price and warnings.

    Attributes:
        n_clients: assumed number of clients in the round.
        needed: smallest number in a sum (`Plan.fewest_summands`).
        settings: an instance of the protection's `settings_type`.
        maximum_users: largest number of users in one sum (`federation.maximum_users`).
        fraction_bits: the fraction bits of the grid of values (`update.fraction_bits`).
        changes: returns one item row's change for other numbers of these two. Raises
            `SettingsError` if no vector has them.
        protections: the protections that the algorithm works with, or none if it does with all.
    """

    n_clients: int
    needed: int
    settings: ProtectionSettings
    maximum_users: int
    fraction_bits: int
    changes: Callable[[int, int], VectorSpec]
    protections: tuple[str, ...] = ()


Facts = TypeVar("Facts", bound=Mapping[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Generic[Facts]):
    """The cost of a whole run, or of a part of one, known before it starts.

    Attributes:
        name: the display name of the part.
        up_bytes, down_bytes: bytes that one client sends and receives for it in a round.
        authority_bytes: bytes that the key authority fetches for it in a round.
        total_bytes: bytes that all of them send and receive for it.
        facts: further values for scripts, by name. A `TypedDict` names those that code reads.
        rows: further facts for people, as names and sentences.
        parts: the prices of its parts and of alternatives, by name.
    """

    name: str = ""
    up_bytes: int = 0
    down_bytes: int = 0
    authority_bytes: int = 0
    total_bytes: int = 0
    facts: Facts
    rows: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, Price[Any]] = field(default_factory=dict)


_EVERY_SIZE_TO = 128
"""From this size on, rounding of shares of a graph's size no longer matters."""

KEYS_BYTES = 160
"""Two X25519 keys, the digest of the model and an Ed25519 signature."""
LISTED_BYTES = 192
"""The same for another client, with its id in place of the digest."""
FEWEST_BITS = 4
"""Of `update.fraction_bits`."""
SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES, POSITION_BYTES = 82, 33, 64, 2


def mask_price(asked: AskedRound) -> Price[Mapping[str, int]]:
    """Return the price of masks for a client of a round, without framing.

    Uploads are keys, shares, a signature and an answer. Downloads are the list of keys, others'
    shares, the survivors and their signatures. The choices of other clients change the numbers a
    little.

    Raises:
        SettingsError: no graph of this many clients withstands the settings' shares of corrupt and
            lost clients.
    """
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    signed_by = n_clients if asked.settings.tolerance.malicious else graph.degree
    held = graph.degree + graph.complete
    bits = -(-n_clients // 8)
    sealed = graph.degree * (SEALED_BYTES + POSITION_BYTES)
    may_drop_out = _may_drop_out(asked, graph)
    return Price(
        name="keys and shares",
        up_bytes=KEYS_BYTES + sealed + SIGNATURE_BYTES + held * (SHARE_BYTES + POSITION_BYTES),
        down_bytes=n_clients * LISTED_BYTES
        + sealed
        + 2 * bits
        + signed_by * (SIGNATURE_BYTES + POSITION_BYTES),
        facts={
            "n_neighbours": graph.degree,
            "threshold": graph.threshold,
            "quorum": graph.quorum,
            "may_drop_out": may_drop_out,
        },
        rows=(
            ("neighbours", f"{graph.degree} hold shares of a client's secrets"),
            ("shares", f"{graph.threshold} of them recover a secret"),
            ("quorum", f"{graph.quorum} clients sign the same survivors before any client answers"),
            ("drop-outs", f"at most {may_drop_out} clients of a round"),
        ),
    )


def mask_warnings(asked: AskedRound) -> list[str]:
    """Return the consequences of masks in such a round."""
    n_clients = asked.n_clients
    graph = parameters_for(n_clients, asked.settings.tolerance)
    found = [
        "The coordinator reads every round's sum, and all clients of a round but one can compute "
        f"the last one's update from it: with {n_clients} clients, {n_clients - 1} must collude. "
        f"{_mask_removal(graph)}",
        *_wide_values(asked),
    ]
    if not _may_drop_out(asked, graph):
        found.append(
            f"With {n_clients} clients in a round a single drop-out abandons the round. Raise "
            "rounds.minimum_clients, or keep all clients online for a round."
        )
    return found


def _mask_removal(graph: GraphParameters) -> str:
    if graph.threshold > graph.degree:
        # One share stays with the client itself, and it never reveals that of its mask key.
        return (
            f"Others cannot remove the masks from a single update: that takes {graph.threshold} "
            f"shares of its client's secrets, and the {graph.degree} others hold {graph.degree}."
        )
    return (
        f"The masks of a single update can be removed if {graph.threshold} of its client's "
        f"{graph.degree} neighbours collude with the coordinator."
    )


def _wide_values(asked: AskedRound) -> list[str]:
    """Return how to keep four bytes a value, if the sums of changes need eight."""
    users, bits = asked.maximum_users, asked.fraction_bits
    if _in_one_word(asked, users, bits):
        return []
    coarser = _largest(FEWEST_BITS, bits, lambda each: _in_one_word(asked, users, each))
    fewer = _largest(1, users, lambda each: _in_one_word(asked, each, bits))
    keeping = [
        f"{name} = {number}"
        for name, number in (
            ("update.fraction_bits", coarser),
            ("federation.maximum_users", fewer),
        )
        if number
    ]
    advice = f" {' or '.join(keeping)} would keep four." if keeping else ""
    return [
        f"Sums of {users} users (federation.maximum_users) at update.fraction_bits = {bits} need "
        f"more than 31 bits, so values take eight bytes under masks.{advice}"
    ]


def _in_one_word(asked: AskedRound, users: int, fraction_bits: int) -> bool:
    """Return whether changes would take one word a value with other numbers of these two."""
    try:
        words = plan_masks(asked.changes(users, fraction_bits)).limbs
    except SettingsError:
        return False
    return all(count == 1 for count in words)


def _largest(lowest: int, above: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from `lowest` and below `above` that fits, or 0 if no number does.

    If a number fits, every smaller one does, too.
    """
    low, high = lowest - 1, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= lowest else 0


def _may_drop_out(asked: AskedRound, graph: GraphParameters) -> int:
    n_clients, needed = graph.n_clients, asked.needed
    if graph.complete:
        return max(0, min(n_clients - graph.threshold, n_clients - needed))
    tolerated = asked.settings.tolerance.dropped_among(n_clients)
    return max(0, min(tolerated, n_clients - graph.quorum, n_clients - needed))


def _one_is_left(asked: AskedRound) -> list[str]:
    """Return sentences on what colluding clients can learn, whatever party adds updates up."""
    return [
        "All clients of a round but one can compute the last one's update by subtracting their "
        f"own from the sum: with {asked.needed} clients, {asked.needed - 1} must "
        "collude."
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutProtection:
    """A protection's description, prices and limits.

    Attributes:
        summary: a description that follows its name.
        views: the data that a coordinator holds, and the data that it never sees, as text.
        statement: the text in a run's ledger about which party can read what. {name} is replaced by
            its name.
        own_settings: dotted keys of this protection's settings among those that only some
            protections use.
        most_clients: the largest possible number of messages in a sum, or None for any number.
        without_entries: why clients cannot add values at their own indices, or empty if they can.
        modules: optional packages that key holders import under a preset.
        warnings: the caveats of such a round for a person that relies on the protection.
        steps_price: the cost of a round's steps besides the vectors, if there are several. It
            raises `SettingsError` if such a round is impossible.
        fewest_clients: the smallest number of clients with which a round begins, if above the sum's
            minimum. Its arguments are the settings, the sum's minimum and the number of members.
        check_size: raises `SettingsError` if a round of this many clients does not withstand what
            it should.
    """

    summary: str = ""
    views: tuple[str, str] = (
        "ciphertexts and metric sums",
        "interactions, any update or sum, the model",
    )
    statement: str = (
        "Under {name} in the papers' protocol the coordinator sees ciphertexts and the metric "
        "sums that clients report. All clients share one secret key and are assumed to be honest "
        "but curious. A client that colludes with the coordinator can open every message."
    )
    own_settings: tuple[str, ...] = ()
    most_clients: int | None = None
    without_entries: str = (
        "values share ciphertexts. Clients' indices differ, and a slot cannot be moved inside a "
        "ciphertext to match another client's"
    )
    modules: Callable[[str], tuple[str, ...]] = lambda preset: ()
    warnings: Callable[[AskedRound], list[str]] = _one_is_left
    steps_price: Callable[[AskedRound], Price[Any] | None] = lambda asked: None
    fewest_clients: Callable[[ProtectionSettings, int, int], int] = lambda settings, needed, n: 0
    check_size: Callable[[int, ProtectionSettings], object] = lambda count, settings: None


ABOUT: dict[str, AboutProtection] = {
    "none": AboutProtection(
        summary="the coordinator reads every update",
        views=("every update, the model", "interactions"),
        statement="Without protection the coordinator can read each client's message.",
        without_entries="the coordinator reads every value with its position, so indices reveal "
        "nothing more and save nothing that must be protected",
        warnings=lambda asked: [
            'protection.name = "none": the coordinator reads every client\'s update. '
            + (
                'Use "bfv" for anything but experiments.'
                if not asked.protections or "bfv" in asked.protections
                else "The algorithm works under no protection, so use it for experiments only."
            )
        ],
    ),
    "bfv": AboutProtection(summary="exact integers", modules=lambda preset: ("tenseal",)),
    "ckks": AboutProtection(summary="the papers' scheme", modules=lambda preset: ("tenseal",)),
    "paillier": AboutProtection(
        summary="few bytes but slow, or one value in each ciphertext as in papers",
        without_entries="",
        modules=lambda preset: ("gmpy2", "phe") if preset == "paper" else ("gmpy2",),
    ),
    "masks": AboutProtection(
        summary="exact integers under masks that clients agree on for one round, 4 bytes a value. "
        "No shared key, the coordinator reads the sums",
        views=("masked updates, their sums, the model", "interactions, any update"),
        statement="Under masks the coordinator reads every round's sum, and only random words of "
        "single messages. A client's message can be opened by as many of its neighbours "
        "as the threshold, if they collude.",
        own_settings=(
            "protection.corrupt_share",
            "protection.dropout_share",
            "protection.coordinator",
            "rounds.mask_step_seconds",
        ),
        most_clients=MAX_CLIENTS,
        without_entries="these only cancel if all clients of a round add values at the same "
        "positions",
        warnings=mask_warnings,
        steps_price=mask_price,
        fewest_clients=lambda settings, needed, n_members: settings.tolerance.fewest_listed(
            needed, n_members
        ),
        check_size=lambda count, settings: parameters_for(count, settings.tolerance),
    ),
}


def about_protection(name: str) -> AboutProtection:
    """Return the description of the protection with this name."""
    found = ABOUT.get(name, AboutProtection())
    return replace(found, statement=found.statement.format(name=name))


def check_sizes(settings: ProtectionSettings, least: int, most: int) -> None:
    """Check that rounds of every size in a range withstand what they should.

    Raises:
        SettingsError: a round does not. The message names its size.
    """
    about = about_protection(settings.name)
    for count in (*range(least, min(most, _EVERY_SIZE_TO) + 1), most):
        about.check_size(count, settings)
