"""A client leaves for good: it signs that rounds wait for it no more, and the authority is told.

It is an application like the first one, with the client's own key in an invitation's place, so that
a coordinator that relays it can neither make nor change one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fedrec.config.schema import Settings
from fedrec.errors import SettingsError
from fedrec.identity.application import SignedApplication
from fedrec.identity.cells import Cell, Partition
from fedrec.identity.client_folder import known_identity
from fedrec.ids import ClientId
from fedrec.wire.link import Link
from fedrec_client.link.connecting import open_link, own_credentials
from fedrec_client.membership.joining import sign_guest_consent
from fedrec_client.membership.roster_chain import kept_roster
from fedrec_client.state.private_store import PrivateStore

__all__ = ["Leave", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """What was handed in.

    Attributes:
        others: how many are left of those without whom it was in no sum.
        needed: how many there have to be.
    """

    client_id: ClientId
    others: int
    needed: int
    others_go_on: bool


def leave(settings: Settings, *, link: Link | None = None) -> Leave:
    """Sign that this client may be missing, and hand that in for the key authority.

    Returns when the coordinator holds it durably.

    Args:
        link: the coordinator; by default gRPC to `client.coordinator`.

    Raises:
        SettingsError: rounds do not wait for this client.
        FedrecError: its keys or certificate cannot be used, or the coordinator is away.
    """
    identity = known_identity(Path(settings.client.state), settings.client.label)
    roster = kept_roster(PrivateStore(Path(settings.client.state), read_only=True))
    partition = Partition() if roster is None else roster.partition
    cell = partition.cell_of(identity.client_id)
    if roster is None or cell is None or identity.client_id not in cell.core:
        why = "it is a guest already" if cell is not None else "it was in no sum yet"
        if roster is not None and not partition.cell_size:
            why = "with this federation's settings they wait for nobody in particular"
        raise SettingsError(
            f"Rounds do not wait for the client {identity.client_id[:16]}: {why}.",
            remedy="Stop it, and it contributes nothing more; the data owners remove it with "
            "`fedrec keys roster remove`.",
        )
    application = SignedApplication.make(
        identity.public,
        own_credentials(settings),
        consent=sign_guest_consent(identity, roster.federation),
    )
    calling = link or open_link(settings)
    try:
        calling.apply(application.to_json())
    finally:
        calling.close()
    return Leave(
        client_id=identity.client_id,
        others=len(cell.core) - 1,
        needed=partition.cell_size,
        others_go_on=_goes_on_without(identity.client_id, partition, cell),
    )


def _goes_on_without(client_id: ClientId, partition: Partition, cell: Cell) -> bool:
    core = tuple(one for one in cell.core if one != client_id)
    shrunk = replace(cell, core=core, guests=(*cell.guests, client_id))
    cells = tuple(shrunk if one.id == cell.id else one for one in partition.cells)
    return replace(partition, cells=cells).thin() is None
