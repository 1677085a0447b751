"""A key epoch for a plan: what the data owners make before a federation starts."""

from __future__ import annotations

from collections.abc import Iterable

from fedrec.config.algorithm import divides_by_count
from fedrec.config.layout import protection_of
from fedrec.config.schema import Plan
from fedrec.errors import KeysError
from fedrec.identity.authority import Authority
from fedrec.identity.cells import Partition
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import RevealerKeyChanges
from fedrec.identity.public import PublicIdentity
from fedrec.identity.roster import Roster

__all__ = ["make_epoch"]

FEWEST_SINGLE_USERS = 32
"""Members of a cell at least where exact sums are of one user each."""


def make_epoch(
    authority: Authority,
    plan: Plan,
    n_items: int,
    members: Iterable[PublicIdentity],
    *,
    number: int,
    revealer: RevealerKeyChanges | None = None,
    previous: Roster | None = None,
    partition: Partition | None = None,
) -> KeyEpoch:
    """Make the protection's secrets and the group key, and sign who belongs to the federation.

    Args:
        n_items: size of the catalogue; the protection's parameters follow from it.
        members: who takes part.
        number: the epoch's number, higher than every earlier one of this federation.
        revealer: where `protection.key_holder` is "authority", who keeps the secret key, before
            anybody hears of the epoch; members are given the half that encrypts.
        previous: the roster of the epoch before.
        partition: the cells; None for none, where the plan needs none.

    Raises:
        SettingsError: when no parameters of the protection can carry these vectors.
        KeysError: when the members cannot form a roster, or the plan wants a revealer and none is
            given, or the other way round; or sums need cells and there are none, or larger ones.
        RosterBreaksCells: the cells do not follow from those of the roster before.
    """
    if (plan.authority_opens) != (revealer is not None):
        raise KeysError(
            f'protection.name is "{plan.protection.name}" and protection.key_holder '
            f'"{plan.protection.key_holder}", which takes {"a" if revealer is None else "no"} '
            f"revealer, but {'none' if revealer is None else 'one'} was given.",
            remedy="Make epochs with `fedrec keys`.",
        )
    if plan.has_cells != bool(partition and partition.cell_size):
        raise KeysError(
            f"Sums of these settings are {'' if plan.has_cells else 'not '}over whole cells, but "
            f"{'no' if plan.has_cells else 'a'} cell size was given.",
            remedy="Make epochs with `fedrec keys`.",
        )
    if partition is not None and divides_by_count(plan):
        _check_single_users(partition)
    protection = protection_of(plan, n_items)
    context, secret = protection.generate()
    with secret:
        held = secret.export_for_wrapping()
        if revealer is not None:
            revealer.keep(number, held)
            held = protection.encryption_key(secret)
        return authority.new_epoch(
            federation=plan.federation.name,
            epoch=number,
            members=members,
            minimum_summands=plan.rounds.minimum_summands,
            protection=plan.protection.name,
            protection_fingerprint=protection.chosen.fingerprint(),
            server_context=context,
            protection_secret=held,
            revealer=None if revealer is None else revealer.load_or_create().public,
            previous=previous,
            partition=partition,
        )


def _check_single_users(partition: Partition) -> None:
    """Refuse exact counts of a few users, each of whom is a member of its own."""
    single = [one for one in partition.standings if one.users_cap == 1]
    if single and 0 < partition.cell_size < FEWEST_SINGLE_USERS:
        raise KeysError(
            f"{len(single)} members have one user each (users_cap), and sums are exact counts of "
            f"{partition.cell_size} of them or more: too few to hide one user among.",
            remedy=f"Begin a federation with rounds.minimum_summands = {FEWEST_SINGLE_USERS}, or "
            "choose an algorithm that sends no exact counts: algorithm.name.",
        )
