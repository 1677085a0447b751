"""The price of a run before it starts: bytes per client and round, and in all."""

from __future__ import annotations

from dataclasses import dataclass

from fedrec.cli.mask_pricing import MaskPrice, mask_price, mask_warnings
from fedrec.config.algorithm import algorithm_of, algorithm_warnings
from fedrec.config.exposure import exposure_of
from fedrec.config.schema import Plan, ProtectionSettings
from fedrec.config.starter import users_with_room
from fedrec.errors import SettingsError
from fedrec.identity.sealing import SEAL_OVERHEAD_BYTES
from fedrec.protection import PROTECTIONS, ProtectionPlan
from fedrec.protection.planner import security_bits
from fedrec.training.layout import dense_values, vector_spec
from fedrec.updates import UPDATES, PaperNumbers

__all__ = ["ParameterSet", "Price", "parameter_sets", "price", "warnings_for"]

FLOAT_BYTES = 4
KEY_HOLDERS = 2
_LEAST_SECURITY_BITS = 128
# Of one Paillier ciphertext, with room for a machine that does other things as well.
_DECRYPTION_SECONDS = 0.03
# Before training every client sends its counts, after it one round only measures.
ROUNDS_BESIDE_TRAINING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a run costs.

    Attributes:
        protection: the parameters that the planner chose.
        n_items: size of the catalogue.
        n_clients: clients in a round, as assumed.
        n_rounds: rounds of a run that abandons none.
        is_encrypted: whether key holders reveal each round.
        upload_bytes: of one client in one round.
        download_bytes: of a client that neither reveals nor verifies, in one round.
        holder_download_bytes: what each of those who open a round fetches besides.
        n_holders: how many open it.
        total_bytes: of all clients in both directions over the whole run.
        dense_plain_bytes: an upload of the full item table in float32.
        dense_paper_bytes: an upload of the same under the papers' CKKS set; 0 where it cannot.
        paper_numbers: the size of a message as the CoLR paper counts it; None where it does not.
        masks: what the steps of a round under masks cost each client; None without them.
        paper_link_minutes: how long the paper's link takes for all training rounds.
    """

    protection: ProtectionPlan
    n_items: int
    n_clients: int
    n_rounds: int
    is_encrypted: bool
    upload_bytes: int
    download_bytes: int
    holder_download_bytes: int
    n_holders: int
    total_bytes: int
    dense_plain_bytes: int
    dense_paper_bytes: int
    paper_numbers: PaperNumbers | None
    paper_link_minutes: float | None
    masks: MaskPrice | None = None


def price(plan: Plan, *, n_items: int, n_clients: int = 0) -> Price:
    """Return what a run of this plan costs.

    Args:
        plan: the shared settings.
        n_items: size of the catalogue.
        n_clients: clients in each round; by default as many as the plan asks for.

    Raises:
        SettingsError: when the protection cannot sum what the plan asks for.
    """
    spec = vector_spec(plan, n_items)
    kind = PROTECTIONS[plan.protection.name]
    chosen = kind.plan(spec, preset=plan.protection.preset)
    n_clients = n_clients or plan.rounds.clients_per_round or plan.rounds.minimum_clients
    n_rounds = plan.rounds.total + ROUNDS_BESIDE_TRAINING
    upload = chosen.message_bytes
    download = PROTECTIONS["none"].plan(spec).message_bytes
    holder = 0
    alone = plan.protection.key_holder == "authority"
    n_holders = 1 if alone else KEY_HOLDERS
    if kind.needs_reveal:
        download += SEAL_OVERHEAD_BYTES
        # A member has its own contribution already.
        holder = (n_clients - (not alone)) * upload
    masks = mask_price(plan, n_clients) if kind.is_interactive else None
    if masks is not None:
        upload += masks.up_bytes
        download += masks.down_bytes
    paper = algorithm_of(plan, n_items).paper_numbers()
    per_round = n_clients * (upload + download) + n_holders * holder
    return Price(
        protection=chosen,
        n_items=n_items,
        n_clients=n_clients,
        n_rounds=n_rounds,
        is_encrypted=kind.needs_reveal,
        upload_bytes=upload,
        download_bytes=download,
        holder_download_bytes=holder,
        n_holders=n_holders if kind.needs_reveal else 0,
        total_bytes=n_rounds * per_round,
        dense_plain_bytes=FLOAT_BYTES * dense_values(plan, n_items),
        dense_paper_bytes=_dense_paper_bytes(plan, n_items),
        paper_numbers=paper,
        paper_link_minutes=paper.link_minutes(plan.rounds.total) if paper else None,
        masks=masks,
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


def _approximate_warnings(plan: Plan, n_items: int) -> list[str]:
    """Return what follows from sums that are only near the exact ones."""
    spec = vector_spec(plan, max(1, n_items))
    try:
        chosen = PROTECTIONS[plan.protection.name].plan(spec, preset=plan.protection.preset)
    except SettingsError:
        return []
    if chosen.exact:
        return []
    return [
        f"{chosen.protection}/{chosen.preset} is approximate: a sum of changes is off by up to "
        f"{chosen.largest_error} grid units, and two runs do not give the same bits. Counts and "
        "metrics stay exact.",
        "What members decrypt carries noise that gives the secret key away. So the coordinator "
        "is told no metrics: `fedrec watch` and its run folder show no quality, and `fedrec "
        "client measured` on a member's machine does. `fedrec client export-model` is refused "
        "without --flood, which spoils the model.",
    ]


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
    if PROTECTIONS[plan.protection.name].needs_reveal:
        found += [
            "All clients of a round but one can compute the last one's update, by taking their "
            f"own from the sum: with {plan.rounds.minimum_clients} clients, "
            f"{plan.rounds.minimum_clients - 1} must collude.",
            *_key_holder_warnings(plan),
            *_limb_warnings(plan),
        ]
        found += _approximate_warnings(plan, n_items)
    elif PROTECTIONS[plan.protection.name].is_interactive:
        n_clients = n_clients or plan.rounds.clients_per_round or plan.rounds.minimum_clients
        found += mask_warnings(plan, n_clients)
    else:
        found.append(
            'protection.name = "none": the coordinator reads every client\'s update. Use "bfv" '
            "for anything but trials."
        )
    found += _key_warnings(plan, n_items)
    if exposed:
        found.append(
            f"It reads {exposed}. Every command that runs this plan is refused without "
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


def _key_holder_warnings(plan: Plan) -> list[str]:
    """Return whom everybody has to trust because of the key that they hold."""
    if plan.protection.key_holder == "members":
        return [
            "All clients hold the same secret key: one that colludes with the coordinator opens "
            "every update."
        ]
    return [
        "The key authority alone holds the secret key. It reads every sum, and every update if it "
        "colludes with the coordinator; clients cannot open anything. `fedrec keys authority run` "
        "must be online in every round: no round opens while it is away."
    ]


def _limb_warnings(plan: Plan) -> list[str]:
    """Say where whoever opens sums sees more than the noise was made for."""
    settings = plan.protection
    try:
        chosen = PROTECTIONS[settings.name].plan(vector_spec(plan, 1), preset=settings.preset)
    except SettingsError:
        return []
    if plan.privacy.mechanism == "none" or max(chosen.limbs) == 1:
        return []
    return [
        f"Values are split into limbs under {settings.name}/{settings.preset}, and whoever opens a "
        "sum sees the sums of the limbs, which the noise is not proven to cover. The promise of "
        "[privacy] holds for published sums, not towards them. A preset that takes values whole "
        '(bfv: protection.preset = "wide"), a smaller update.fraction_bits or '
        "federation.maximum_users avoids limbs."
    ]


def _key_warnings(plan: Plan, n_items: int) -> list[str]:
    """Return what is weak or slow about a key whose modulus must not be factored."""
    kind, preset = PROTECTIONS[plan.protection.name], plan.protection.preset
    try:
        chosen = kind.plan(vector_spec(plan, max(1, n_items)), preset=preset)
    except SettingsError:
        # Whoever asks for the price is told why there is none.
        return []
    found = []
    if chosen.key_bits and chosen.security_bits < _LEAST_SECURITY_BITS:
        found.append(
            f'protection.preset = "{chosen.preset}": a key of {chosen.key_bits} bits has '
            f"{chosen.security_bits} bits of security, and every other set at least "
            f'{_LEAST_SECURITY_BITS}. Use "{kind.presets[0]}" for anything but trials.'
        )
    seconds = chosen.n_blocks * _DECRYPTION_SECONDS
    if n_items and chosen.key_bits and seconds > plan.rounds.reveal_timeout_seconds:
        found.append(
            f"A key holder decrypts {chosen.n_blocks} ciphertexts in a round, for which a slow "
            f"machine takes {seconds:.0f} seconds; rounds.reveal_timeout_seconds is "
            f"{plan.rounds.reveal_timeout_seconds:g}, after which it is replaced. Set it higher."
        )
    return found


def _index_warnings(plan: Plan) -> list[str]:
    """Say what the structure's paper gives away by indices, which are never sent here."""
    clear = UPDATES[plan.update.structure].clear_indices
    if not clear:
        return []
    return [
        f'update.structure = "{plan.update.structure}": its paper sends {clear}, in the clear. '
        "fedrec sends no index: zeros travel with the rest of the vector. `fedrec audit "
        "indices` measures on your data what indices would give away."
    ]
