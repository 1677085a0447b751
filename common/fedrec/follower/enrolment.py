"""Enrol a client. It compares everything that the coordinator sends before it trusts it.

The roster must be signed by the authority whose key this client pinned. The plan is compared with
this client's settings, and the catalogue with the local file. The protection's parameters must be
those that this version plans for that vector.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedrec.data import Catalogue
from fedrec.durable import write_whole
from fedrec.errors import CatalogueMismatch, DataError, KeysError, PlanMismatch
from fedrec.follower.membership import Membership, check_protocol, tag_key_of
from fedrec.identity.epoch_secrets import EpochSecrets, open_epoch
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.plan.agreement import (
    Difference,
    check_continued,
    plan_differences,
    plan_fingerprint,
    plan_from_json,
)
from fedrec.plan.exposure import check_exposure, check_one_process
from fedrec.plan.layout import Layout, protection_of
from fedrec.plan.schema import Plan
from fedrec.protection import Member, Protection
from fedrec.protection.protection import in_one_step, with_encryptor
from fedrec.wire.link import Link
from fedrec.wire.messages import FederationInfo

_REMEDY = "Ask the operator which federation this coordinator serves."


def enrol(
    link: Link,
    identity: Identity,
    *,
    authority_key: bytes,
    catalogue_cache: Path,
    expected: Plan,
    catalogue_file: Path | None = None,
    accept_exposure: bool = False,
    secret_of: Callable[[int], bytes] | None = None,
) -> Membership:
    """Ask a coordinator for its federation, check every part, and open the epoch.

    Args:
        link: the coordinator.
        identity: this client's keys.
        authority_key: the pinned public key of the data owners' authority.
        catalogue_cache: where a fetched catalogue is kept.
        expected: the local settings. Each value that they set must equal the federation's value. So
            must each value that decides privacy, even if they don't give it.
        catalogue_file: the client's own catalogue file, if it has one.
        accept_exposure: this client accepts what a plan without encryption exposes. Only its own
            settings count.
        secret_of: returns an epoch's secret key. Only the key authority's revealer has one.

    Raises:
        VersionMismatch: the coordinator speaks another major protocol version.
        PlanMismatch: the plan can't be read, or it differs from this client's settings.
        CatalogueMismatch: the local catalogue differs from the federation's catalogue.
        RefusedError: the authority didn't sign the roster, the roster doesn't list this client, or
            the plan exposes users and this client didn't accept that.
        NotInRoster: the roster lists this client neither as a member nor as the revealer.
        KeysError: the epoch was made for other settings, or its context contains a secret key.
    """
    info = link.federation(identity.client_id)
    check_protocol(info.protocol_version)
    plan = plan_from_json(info.plan_json)
    check_continued(plan)
    _refuse(plan_differences(expected, plan))
    check_exposure(plan, accepted=accept_exposure)
    check_one_process(plan)
    if plan.federation.name != info.federation:
        raise PlanMismatch(
            f"The coordinator serves {info.federation!r}, but its plan is for "
            f"{plan.federation.name!r}.",
            remedy=_REMEDY,
        )
    catalogue = _catalogue(link, identity, info, catalogue_cache, catalogue_file)
    roster, secrets = open_epoch(
        roster_json=info.roster_json,
        server_context=info.server_context,
        wrapped=info.wrapped_secrets,
        identity=identity,
        pinned_authority_key=authority_key,
    )
    protection = _protection(plan, len(catalogue), roster, info)
    return Membership(
        identity=identity,
        run=info.run,
        plan=plan,
        plan_fingerprint=plan_fingerprint(plan),
        catalogue=catalogue,
        catalogue_fingerprint=info.catalogue_fingerprint,
        roster=roster,
        secrets=secrets,
        context=info.server_context,
        protection=protection,
        half=_half(protection, info, roster, secrets, secret_of),
        layout=Layout.uncounted(plan, len(catalogue)),
    )


def _half(
    protection: Protection,
    info: FederationInfo,
    roster: Roster,
    secrets: EpochSecrets,
    secret_of: Callable[[int], bytes] | None,
) -> Member | None:
    """Return the object that protects this client's vectors or, for the revealer, opens sums."""
    if protection.steps.are_several:
        protection.envelope(info.server_context)
        return None
    context, tag_key = info.server_context, tag_key_of(secrets, info.federation, roster.epoch)
    if roster.revealer is not None and secret_of is None:
        return with_encryptor(protection).encryptor(
            context, secrets.protection_secret, tag_key=tag_key
        )
    secret = secrets.protection_secret if protection.needs_reveal else b"none"
    if roster.revealer is not None and secret_of is not None:
        secret = secret_of(roster.epoch)
    return in_one_step(protection).member(context, secret, tag_key=tag_key)


def _refuse(differences: tuple[Difference, ...]) -> None:
    if differences:
        lines = " and ".join(difference.agreeing for difference in differences)
        raise PlanMismatch(
            "The federation's plan differs from this client's settings: "
            f"{'; '.join(map(str, differences))}.",
            remedy=f"Don't take part, or agree: set {lines} in this client's settings file.",
        )


def _catalogue(
    link: Link, identity: Identity, info: FederationInfo, cache: Path, local: Path | None
) -> Catalogue:
    """Return the federation's catalogue: the local file, else a cached or fetched one."""
    if local is not None:
        catalogue = Catalogue.load(local)
        if catalogue.fingerprint() != info.catalogue_fingerprint:
            raise CatalogueMismatch(
                f"The catalogue {local} has the fingerprint {catalogue.fingerprint()[:16]}, but "
                f"the federation's is {info.catalogue_fingerprint[:16]}.",
                remedy="Ask for the federation's catalogue, or remove data.catalogue from the "
                "settings to fetch it.",
            )
    else:
        catalogue = _kept_or_fetched(link, identity, info, cache)
    if len(catalogue) != info.n_items:
        raise CatalogueMismatch(
            f"The catalogue has {len(catalogue)} items, but {info.n_items} were announced.",
            remedy=_REMEDY,
        )
    return catalogue


def _kept_or_fetched(
    link: Link, identity: Identity, info: FederationInfo, cache: Path
) -> Catalogue:
    try:
        kept = Catalogue.load(cache)
    except DataError:
        kept = None
    if kept is not None and kept.fingerprint() == info.catalogue_fingerprint:
        return kept
    write_whole(cache, link.catalogue(identity.client_id), private=True)
    fetched = Catalogue.load(cache)
    if fetched.fingerprint() != info.catalogue_fingerprint:
        raise CatalogueMismatch(
            "The coordinator sent a different catalogue from the announced one.", remedy=_REMEDY
        )
    return fetched


def _protection(plan: Plan, n_items: int, roster: Roster, info: FederationInfo) -> Protection:
    """Return the protection that the authority signed, if it matches the plan as computed here."""
    protection = protection_of(plan, n_items)
    chosen = protection.chosen
    expected = (
        plan.federation.name,
        info.epoch,
        plan.protection.name,
        chosen.fingerprint(),
        "authority" if plan.authority_opens else "members",
        plan.has_cells,
    )
    found = (
        roster.federation,
        roster.epoch,
        roster.protection,
        roster.protection_fingerprint,
        roster.key_holder,
        bool(roster.partition.cell_size),
    )
    names = (
        "federation",
        "epoch",
        "protection",
        "protection parameters",
        "key holder",
        "division into cells",
    )
    wrong = [
        f"{name} {there!r} instead of {here!r}"
        for name, there, here in zip(names, found, expected, strict=True)
        if there != here
    ]
    if wrong:
        raise KeysError(
            f"The signed roster is for a different federation: {', '.join(wrong)}.",
            remedy="Use the federation's settings and its release of fedrec, or ask its key "
            "authority for an epoch that fits your settings.",
        )
    protection.envelope(info.server_context)
    return protection
