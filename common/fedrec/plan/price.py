"""The price of a run before it starts, and what somebody who trusts its settings should know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.identity.sealing import SEAL_OVERHEAD_BYTES
from fedrec.model.block_folder import BlockFolder
from fedrec.model.tables import BLOCKS, room_on_disk, table_bytes
from fedrec.plan.algorithm import algorithm_of, algorithm_warnings
from fedrec.plan.exposure import SAFE_FLOOR, exposure_of, raised_counts
from fedrec.plan.layout import Layout, dense_values, protection_of, vector_spec
from fedrec.plan.privacy import honesty_statements
from fedrec.plan.protections import (
    DECRYPTION_SECONDS,
    AskedRound,
    Price,
    about_protection,
    opening_seconds,
)
from fedrec.plan.schema import Plan, users_with_room
from fedrec.plan.travelling_rows import padded_rows
from fedrec.protection import (
    PROTECTIONS,
    Protection,
    ProtectionPlan,
    ProtectionSettings,
    VectorSpec,
)
from fedrec.protection.encryption_parameters import security_bits
from fedrec.updates import UPDATES

FLOAT_BYTES = 4
_LEAST_SECURITY_BITS = 128
# Before training every client sends its counts, after it one round only measures.
ROUNDS_BESIDE_TRAINING = 2


def price(plan: Plan, *, n_items: int, n_clients: int = 0, n_active: int | None = None) -> Price:
    """Return what a run of this plan costs at most; bytes are those of a round after the count.

    Nobody knows before the count how many items will be trained: the price is that of all of
    them, or of as many as the algorithm can take.

    Args:
        plan: the shared settings.
        n_items: size of the catalogue.
        n_clients: clients in each round; by default as many as the plan asks for.
        n_active: items that enough users hold, as far as somebody knows.

    Returns:
        A price with the parts `count` (the count round), `steps` (what a round's steps cost each
        client besides its vector, if there are several), `opening` (a sum of entries, where sums
        are not as long as uploads) and `expected` (the run with `n_active` items; not under noise,
        which has all rows travel). Its facts are the protection's parameters and

        - n_rows: item rows of an upload after the count, at most.
        - n_rounds: rounds of a run that abandons none.
        - is_encrypted: whether the coordinator cannot read a round's sum.
        - dense_plain_bytes: an upload of the full item table in float32.
        - dense_paper_bytes: an upload of the same under the papers' CKKS set; 0 where it cannot.
        - paper_numbers: the size of a message as the CoLR paper counts it; None where it does not.
        - paper_link_minutes: how long the paper's link takes for all training rounds.

    Raises:
        SettingsError: when the protection cannot sum what the plan asks for.
    """
    planned, largest = protection_of(plan, n_items), Layout.largest(plan, n_items)
    n_clients = n_clients or _asked(plan)
    n_rounds = plan.rounds.total + ROUNDS_BESIDE_TRAINING
    steps = about_protection(planned.name).steps_price(_asked_round(plan, n_clients))

    def of_round(layout: Layout) -> Price:
        return _round_price(plan, planned, layout.vector_spec, n_clients, steps)

    counting = of_round(Layout.counting(plan, n_items))

    def of_run(layout: Layout, facts: Mapping[str, Any]) -> Price:
        each = of_round(layout)
        total = counting.total_bytes + (n_rounds - 1) * each.total_bytes
        return replace(each, total_bytes=total, facts={"n_rows": layout.n_rows, **facts})

    parts = {
        "count": counting,
        "steps": steps,
        "opening": _opening_price(plan, planned.chosen, n_clients),
        "expected": None,
    }
    if plan.privacy.mechanism == "none" and n_active:
        active = Layout.of(plan, padded_rows(n_active), n_items)
        parts["expected"] = of_run(active, {"n_active": n_active})
    paper = algorithm_of(plan, n_items).paper_numbers()
    facts = {
        "protection": planned.chosen,
        "n_items": n_items,
        "n_clients": n_clients,
        "n_rounds": n_rounds,
        "is_encrypted": planned.needs_reveal,
        "dense_plain_bytes": FLOAT_BYTES * dense_values(plan, n_items),
        "dense_paper_bytes": _dense_paper_bytes(plan, n_items),
        "paper_numbers": paper,
        "paper_link_minutes": paper.link_minutes(plan.rounds.total) if paper else None,
    }
    there = {name: part for name, part in parts.items() if part is not None}
    return replace(of_run(largest, facts), parts=there)


def _round_price(
    plan: Plan, planned: Protection, spec: VectorSpec, n_clients: int, steps: Price | None
) -> Price:
    """Return what one round costs each client, and the key authority."""
    over = planned.over(spec).chosen
    upload, download = over.message_bytes, PROTECTIONS["none"].plan(spec).message_bytes
    authority = 0
    total = over.sum_bytes(over.expected_blocks(n_clients)) if over.entries else upload
    if planned.needs_reveal and not plan.authority_opens:
        download = total
    elif planned.needs_reveal:
        download += SEAL_OVERHEAD_BYTES
        adds_up = n_clients <= plan.rounds.recompute_limit
        authority = n_clients * upload if adds_up else total
    if steps is not None:
        upload += steps.up_bytes
        download += steps.down_bytes
    return Price(
        up_bytes=upload,
        down_bytes=download,
        authority_bytes=authority,
        total_bytes=n_clients * (upload + download) + authority,
    )


def _opening_price(plan: Plan, chosen: ProtectionPlan, n_clients: int) -> Price | None:
    """Return what it takes to open a sum of entries, on a slow machine and line.

    Its facts are how many values an upload has (entries) of how many (n_places), how many a sum
    has (expected_entries: were clients' indices independent; most_entries: were they all
    different) and as how many bytes, and the seconds of opening it, after which the run goes on
    without clients' word on what they decrypted (report_seconds; None: it waits).
    """
    if not chosen.entries:
        return None
    alone = plan.authority_opens
    adds_up = alone and n_clients <= plan.rounds.recompute_limit
    seconds = opening_seconds(chosen, n_clients, adds_up=adds_up)
    n_blocks, tail = chosen.expected_blocks(n_clients), chosen.n_blocks - chosen.entries
    return Price(
        facts={
            "entries": chosen.entries,
            "n_places": chosen.n_places,
            "expected_entries": n_blocks - tail,
            "most_entries": chosen.most_blocks(n_clients) - tail,
            "sum_bytes": chosen.sum_bytes(n_blocks),
            "seconds": seconds,
            "report_seconds": None if alone else max(seconds, plan.rounds.report_seconds),
        }
    )


def private_price(
    plan: Plan, n_users: int, n_items: int, *, memory_mib: int, folders: Mapping[str, str]
) -> Price:
    """Return what users' private tables take: memory while they fit, else files.

    Its facts are the bytes of one version of all tables, of what may lie in memory, and of what a
    run needs on disk (0 where the tables fit memory), and what is free now by the setting whose
    folder is meant, of those that need more.

    Args:
        memory_mib: `client.memory_mib`.
        folders: where the files would lie, by setting.
    """
    size = table_bytes(n_users, algorithm_of(plan, n_items).private_widths)
    memory = memory_mib << 20
    disk = room_on_disk(size) if size > memory else 0
    free = {
        setting: BlockFolder.at(Path(folder) / BLOCKS).room()[1]
        for setting, folder in folders.items()
    }
    return Price(
        facts={
            "n_users": n_users,
            "table_bytes": size,
            "memory_bytes": memory,
            "disk_bytes": disk,
            "free": {setting: found for setting, found in free.items() if found < disk},
        }
    )


def _asked(plan: Plan) -> int:
    """Return how many clients a round of the plan has, as far as the plan says it."""
    cells = plan.rounds.cells_per_round * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)
    return plan.rounds.clients_per_round or max(cells, plan.rounds.minimum_clients)


def _asked_round(plan: Plan, n_clients: int) -> AskedRound:
    """Return what a protection has to know of a round of so many clients."""

    def changes(maximum_users: int, fraction_bits: int) -> VectorSpec:
        changed = plan.model_copy(
            update={
                "federation": plan.federation.model_copy(update={"maximum_users": maximum_users}),
                "update": plan.update.model_copy(update={"fraction_bits": fraction_bits}),
            }
        )
        layout = Layout.of(changed, 1)
        whole = layout.vector_spec
        return replace(whole, segments=whole.segments[: len(layout.tensors)])

    return AskedRound(
        n_clients=n_clients,
        minimum_clients=plan.rounds.minimum_clients,
        minimum_summands=plan.rounds.minimum_summands,
        settings=plan.protection,
        maximum_users=plan.federation.maximum_users,
        fraction_bits=plan.update.fraction_bits,
        changes=changes,
    )


def _dense_paper_bytes(plan: Plan, n_items: int) -> int:
    dense = plan.model_copy(
        update={"update": plan.update.model_copy(update={"structure": "dense"})}
    )
    try:
        return PROTECTIONS["ckks"].plan(vector_spec(dense, n_items), preset="paper").message_bytes
    except SettingsError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSet:
    """What a protection would cost with one of its parameter sets, all else being equal.

    Attributes:
        chosen: whether the settings choose it.
        message_bytes: an upload; 0 where the set cannot carry the sums.
        bytes_per_value: its share for each value of the vector.
        security_bits: classical; 0 without encryption.
        modulus_bits: bits of all primes together; 0 without a ring.
        most_modulus_bits: as many would still have 128 bits of security; 0 without a ring.
        headroom_bits: to spare before noise or overflow could spoil a sum; 0 without a ring.
        key_bits: bits of a modulus that must not be factored; 0 where there is none.
        problem: why the set cannot carry the sums, or an empty string.
    """

    protection: str
    preset: str
    chosen: bool
    message_bytes: int = 0
    bytes_per_value: float = 0.0
    security_bits: int = 0
    modulus_bits: int = 0
    most_modulus_bits: int = 0
    headroom_bits: float = 0.0
    key_bits: int = 0
    problem: str = ""


def parameter_sets(plan: Plan, n_items: int) -> tuple[ParameterSet, ...]:
    """Return every parameter set of every protection, priced for this plan's vector."""
    found = []
    for name, kind in PROTECTIONS.items():
        preset = plan.protection.preset
        own = kind.presets[0] if preset == "default" else preset
        for other in kind.presets:
            chosen = plan.protection.name == name and other == own
            found.append(_priced_set(plan, n_items, name, other, chosen=chosen))
    return tuple(found)


def _priced_set(
    plan: Plan, n_items: int, protection: str, preset: str, *, chosen: bool
) -> ParameterSet:
    settings = ProtectionSettings.model_validate(
        {"name": protection, "preset": preset, "key_holder": plan.protection.key_holder}
    )
    spec = vector_spec(plan.model_copy(update={"protection": settings}), n_items)
    try:
        priced = PROTECTIONS[protection].plan(spec, preset=preset)
    except SettingsError as error:
        return ParameterSet(
            protection=protection, preset=preset, chosen=chosen, problem=error.message
        )
    degree = priced.poly_modulus_degree
    return ParameterSet(
        protection=protection,
        preset=preset,
        chosen=chosen,
        message_bytes=priced.message_bytes,
        bytes_per_value=priced.message_bytes / priced.n_values,
        security_bits=priced.security_bits,
        modulus_bits=sum(priced.coeff_mod_bit_sizes),
        most_modulus_bits=_most_modulus_bits(degree) if degree else 0,
        headroom_bits=priced.headroom_bits if degree else 0.0,
        key_bits=priced.key_bits,
    )


def _most_modulus_bits(degree: int) -> int:
    """Return the largest modulus with which a ring has 128 bits of security."""
    bits = 0
    while security_bits(degree, bits + 1):
        bits += 1
    return bits


def warnings_for(plan: Plan, n_users: int = 0, n_items: int = 0, n_clients: int = 0) -> list[str]:
    """Return what somebody who trusts these settings should know.

    Args:
        plan: the shared settings.
        n_users: users in this machine's data; 0 where nobody knows.
        n_items: size of the catalogue; 0 where nobody knows.
        n_clients: clients in each round; by default as many as the plan asks for.
    """
    exposed = exposure_of(plan)
    found = [
        *algorithm_warnings(plan, n_items),
        *UPDATES[plan.update.structure].warnings(plan.update),
        *_index_warnings(plan),
    ]
    if n_users > plan.federation.maximum_users:
        found.append(
            f"federation.maximum_users = {plan.federation.maximum_users}, but data.path has "
            f"{n_users} users: neither a simulation nor a client with this data can start. Set "
            f"it to {users_with_room(n_users)}."
        )
    kind = PROTECTIONS[plan.protection.name]
    found += about_protection(kind.name).warnings(_asked_round(plan, n_clients or _asked(plan)))
    if kind.needs_reveal:
        found += _key_holder_warnings(plan)
    found += _key_warnings(plan, n_items)
    found += _row_warnings(plan, n_items)
    found += _member_warnings(plan)
    if exposed:
        who = "The coordinator" if plan.update.indices == "clear" else "It"
        found.append(
            f"{who} reads {exposed}. Every command that runs this plan is refused without "
            "--accept-exposure, the coordinator's and each client's on its own."
        )
    if plan.evaluation.protocol == "paper":
        found.append(
            'evaluation.protocol = "paper" leaks the held-out items through the negatives: a '
            "scorer that only counts the negatives of 30 rounds, and learns nothing, reaches "
            "HR@10 .96 and NDCG@10 .80 on MovieLens-100K. Use it to reproduce published tables "
            'only; "full" measures.'
        )
    if plan.federation.minimum_item_users == 1:
        found.append(
            "federation.minimum_item_users = 1: the row of an item that one user holds is that "
            "user's data, readable by every client. Set it to 10."
        )
    return found


def _member_warnings(plan: Plan) -> list[str]:
    """Say what a member with changed software can do about rare items, and what stops it."""
    raised = raised_counts(plan, 1)
    if not raised:
        return []
    size = 2 * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)
    where = f"With fewer than {size} clients, which are one cell, " * plan.authority_opens
    words = f"{where}{raised}"
    return [
        f"{words[0].upper()}{words[1:]} Only client.minimum_own_item_users = {SAFE_FLOOR} or more "
        "at the other clients helps, which suits clients with many users."
    ]


def _row_warnings(plan: Plan, n_items: int) -> list[str]:
    """Say where the count may show that there are too many items for the algorithm."""
    if not n_items or plan.privacy.mechanism != "none":
        return []
    try:
        Layout.of(plan, padded_rows(n_items))
    except SettingsError as error:
        return [
            "If enough users hold every item, the run is refused after the count: "
            f"{error.message} {error.remedy} The price is that of as many rows as work."
        ]
    return []


def _key_holder_warnings(plan: Plan) -> list[str]:
    """Return whom everybody has to trust because of the key that they hold."""
    if not plan.authority_opens:
        return [
            'protection.key_holder = "members", the papers\' protocol: all clients hold the same '
            "secret key and are taken to be honest but curious, like the coordinator. One client "
            "that colludes with it opens every update, nobody checks what it adds up, and the "
            "sums of two rounds may differ by one client's update. Where that is not enough, set "
            'protection.key_holder = "authority".'
        ]
    return [
        "The key authority alone holds the secret key. It reads every sum, and every update if it "
        "colludes with the coordinator; clients cannot open anything. Every closed round waits for "
        "`fedrec keys authority run`, as long as it takes.",
        *honesty_statements(plan),
    ]


def _key_warnings(plan: Plan, n_items: int) -> list[str]:
    """Return what is weak or slow about a key whose modulus must not be factored."""
    kind, preset = PROTECTIONS[plan.protection.name], plan.protection.preset
    try:
        chosen = kind.plan(vector_spec(plan, max(1, n_items)), preset=preset)
    except SettingsError:
        # A caller that asks for the price is told why there is none.
        return []
    found = []
    if chosen.key_bits and chosen.security_bits < _LEAST_SECURITY_BITS:
        found.append(
            f'protection.preset = "{chosen.preset}": a key of {chosen.key_bits} bits has '
            f"{chosen.security_bits} bits of security, and every other set at least "
            f'{_LEAST_SECURITY_BITS}. Use "{kind.presets[0]}" for anything but trials.'
        )
    seconds = chosen.n_blocks * DECRYPTION_SECONDS
    if (
        n_items
        and chosen.key_bits
        and not chosen.entries
        and not plan.authority_opens
        and seconds > plan.rounds.report_seconds
    ):
        found.append(
            f"Every client decrypts {chosen.n_blocks} ciphertexts in a round, for which a slow "
            f"machine takes {seconds:.0f} seconds; rounds.report_seconds is "
            f"{plan.rounds.report_seconds:g}, after which the round is shown without its metrics. "
            "Set it higher."
        )
    return found


def _index_warnings(plan: Plan) -> list[str]:
    """Say what the structure's paper gives away by indices, and whether they are sent here."""
    clear = UPDATES[plan.update.structure].clear_indices
    if not clear:
        return []
    if plan.update.indices == "clear":
        return [
            'update.indices = "clear": values are encrypted, indices are not. `fedrec audit '
            "--only indices` measures on your data how much of a history they give away."
        ]
    return [
        f'update.structure = "{plan.update.structure}": its paper sends {clear}, in the clear. '
        "fedrec sends no index: zeros travel with the rest of the vector. `fedrec audit "
        "--only indices` measures on your data what indices would give away."
    ]
