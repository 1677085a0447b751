"""The price of a run before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import SettingsError
from fedrec.identity.cells import FEWEST_IN_CELL
from fedrec.identity.sealing import SEAL_OVERHEAD_BYTES
from fedrec.model.block_folder import BlockFolder
from fedrec.model.tables import BLOCKS, room_on_disk, table_bytes
from fedrec.plan.algorithm import about_algorithm, algorithm_of
from fedrec.plan.layout import (
    Layout,
    computed_bytes,
    dense_values,
    own_model_bytes,
    protection_of,
    vector_spec,
)
from fedrec.plan.protections import (
    AskedRound,
    Facts,
    Price,
    about_protection,
    opening_seconds,
)
from fedrec.plan.schema import Plan
from fedrec.plan.travelling_rows import padded_rows
from fedrec.protection import (
    PROTECTIONS,
    Protection,
    ProtectionPlan,
    ProtectionSettings,
    VectorSpec,
)
from fedrec.protection.encryption_parameters import security_bits
from fedrec.updates import PaperNumbers

if TYPE_CHECKING:
    from fedrec.algorithms import Algorithm

FLOAT_BYTES = 4


class RunFacts(TypedDict):
    """The protection's parameters, and what a run's bytes follow from.

    Attributes:
        n_rows: item rows of an upload after the count, at most.
        n_rounds: rounds of a run that abandons none.
        is_encrypted: whether the coordinator cannot read a round's sum.
        dense_plain_bytes: an upload of the full item table in float32.
        dense_paper_bytes: an upload of the same under the papers' CKKS set, or 0 if it cannot.
        paper_numbers: the size of a message as the CoLR paper counts it, or None if it does not.
        paper_link_minutes: how long the paper's link takes for all training rounds.
    """

    protection: ProtectionPlan
    n_items: int
    n_clients: int
    n_rows: int
    n_rounds: int
    is_encrypted: bool
    dense_plain_bytes: int
    dense_paper_bytes: int
    paper_numbers: PaperNumbers | None
    paper_link_minutes: float | None


class ExpectedFacts(TypedDict):
    """Of a run: its trained items, and the rows that travel for them."""

    n_active: int
    n_rows: int


def price(
    plan: Plan, *, n_items: int, n_clients: int = 0, n_active: int | None = None
) -> Price[RunFacts]:
    """Return the largest cost of a run of this plan. Bytes are those of a round after the count.

    The number of trained items is unknown before the count. The price is that of all items, or of
    as many as the algorithm supports.

    Args:
        plan: the shared settings.
        n_items: size of the catalogue.
        n_clients: clients in each round, by default the number in the plan.
        n_active: items with enough holders, if known.

    Returns:
        A price with parts. `count` is the count round. `steps` is the cost of a round's steps
        besides the vector, if there are several. `opening` is a sum of entries, if sums are not as
        long as uploads. `expected` is the run with `n_active` items, except under noise, with which
        all rows travel.

    Raises:
        SettingsError: when the protection cannot sum what the plan asks for.
    """
    planned, largest = protection_of(plan, n_items), Layout.largest(plan, n_items)
    n_clients = n_clients or asked_clients(plan)
    n_rounds = plan.rounds.published
    steps = about_protection(planned.name).steps_price(asked_round(plan, n_clients))

    def of_round(layout: Layout) -> Price[Mapping[str, object]]:
        return _round_price(plan, planned, layout.vector_spec, n_clients, steps)

    counting = of_round(Layout.counting(plan, n_items))

    def of_run(layout: Layout, facts: Facts) -> Price[Facts]:
        each = of_round(layout)
        received = own_model_bytes(plan, layout.n_rows) + computed_bytes(plan, layout.n_rows)
        total = each.total_bytes + n_clients * received
        return Price(
            up_bytes=each.up_bytes,
            down_bytes=each.down_bytes + received,
            authority_bytes=each.authority_bytes,
            total_bytes=counting.total_bytes + (n_rounds - 1) * total,
            facts=facts,
        )

    parts: dict[str, Price[Any] | None] = {
        "count": counting,
        "steps": steps,
        "opening": _opening_price(plan, planned.chosen, n_clients),
        "expected": None,
    }
    if plan.privacy.mechanism == "none" and n_active:
        active = Layout.of(plan, padded_rows(n_active), n_items)
        parts["expected"] = of_run(active, ExpectedFacts(n_active=n_active, n_rows=active.n_rows))
    paper = paper_numbers(algorithm_of(plan, n_items))
    facts: RunFacts = {
        "protection": planned.chosen,
        "n_items": n_items,
        "n_clients": n_clients,
        "n_rows": largest.n_rows,
        "n_rounds": n_rounds,
        "is_encrypted": planned.needs_reveal,
        "dense_plain_bytes": FLOAT_BYTES * dense_values(plan, n_items),
        "dense_paper_bytes": _dense_paper_bytes(plan, n_items),
        "paper_numbers": paper,
        "paper_link_minutes": paper.link_minutes(plan.rounds.total) if paper else None,
    }
    there = {name: part for name, part in parts.items() if part is not None}
    return replace(of_run(largest, facts), parts=there)


def paper_numbers(algorithm: Algorithm) -> PaperNumbers | None:
    """Return the size of a message as the CoLR paper counts it, or None if it does not."""
    if any(entry.structured for entry in algorithm.parameters):
        assert isinstance(algorithm, TrainedAlgorithm)
        return algorithm.sent.structure.paper_numbers(algorithm.shapes.n_items)
    return None


def _round_price(
    plan: Plan, planned: Protection, spec: VectorSpec, n_clients: int, steps: Price[Any] | None
) -> Price[Mapping[str, object]]:
    """Return the price of one round for each client and for the key authority."""
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
        facts={},
    )


class OpeningFacts(TypedDict):
    """The values of an upload and of a sum of entries, and the time of opening it.

    Attributes:
        entries: values of an upload, of `n_places`.
        expected_entries: values of a sum, were clients' indices independent.
        most_entries: the same, were they all different.
        report_seconds: after this time the run continues without clients' reports on what they
            decrypted. If None, it waits for them.
    """

    entries: int
    n_places: int
    expected_entries: int
    most_entries: int
    sum_bytes: int
    seconds: float
    report_seconds: float | None


def _opening_price(
    plan: Plan, chosen: ProtectionPlan, n_clients: int
) -> Price[OpeningFacts] | None:
    """Return the price of opening a sum of entries, on a slow machine and line."""
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


class TableFacts(TypedDict):
    """The bytes of users' private tables.

    Attributes:
        table_bytes: one version of all tables.
        memory_bytes: the part that may be in memory.
        disk_bytes: the disk space of a run, 0 if the tables fit memory.
        free: the free space of each folder that is too small, by its setting.
    """

    n_users: int
    table_bytes: int
    memory_bytes: int
    disk_bytes: int
    free: dict[str, int]


def private_price(
    plan: Plan, n_users: int, n_items: int, *, memory_mib: int, folders: Mapping[str, str]
) -> Price[TableFacts]:
    """Return the price of users' private tables: memory if they fit, files otherwise.

    Args:
        memory_mib: `client.memory_mib`.
        folders: the folders for the files, by setting.
    """
    size = table_bytes(n_users, algorithm_of(plan, n_items).derived.private_widths)
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


def asked_clients(plan: Plan) -> int:
    """Return the number of clients in a round, as far as the plan determines it."""
    cells = plan.rounds.cells_per_round * max(FEWEST_IN_CELL, plan.rounds.minimum_summands)
    return plan.rounds.clients_per_round or max(cells, plan.rounds.minimum_clients)


def asked_round(plan: Plan, n_clients: int) -> AskedRound:
    """Return the facts about a round of this many clients that a protection needs."""

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
        needed=plan.fewest_summands,
        settings=plan.protection,
        maximum_users=plan.federation.maximum_users,
        fraction_bits=plan.update.fraction_bits,
        changes=changes,
        protections=about_algorithm(plan).supports.protections,
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
    """The price of a protection with one of its parameter sets, all else being equal.

    Attributes:
        chosen: whether the settings select it.
        message_bytes: an upload, or 0 if the set cannot carry the sums.
        bytes_per_value: its share for each value of the vector.
        security_bits: classical, or 0 without encryption.
        modulus_bits: bits of all primes together, or 0 without a ring.
        most_modulus_bits: the most with 128 bits of security, or 0 without a ring.
        headroom_bits: the margin before noise or overflow could spoil a sum, or 0 without a ring.
        key_bits: bits of a modulus that must not be factored, or 0 without one.
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
    """Return the largest modulus, in bits, with which a ring has 128 bits of security."""
    bits = 0
    while security_bits(degree, bits + 1):
        bits += 1
    return bits
