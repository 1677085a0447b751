"""A small federation's authority, and the coordinator that it delivers to, without a network."""

from __future__ import annotations

from world.federation import change
from world.plans import plan_of

from fedrec.errors import FedrecError
from fedrec.identity.application import SignedApplication
from fedrec.identity.certificates import Credentials
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.identity import Identity
from fedrec.identity.public import PublicIdentity
from fedrec.wire.admin_link import RunStatus
from fedrec_authority.folder.authority_folder import AuthorityFolder

NOW = 1_700_000_000
PASSPHRASE = "correct horse battery staple"
PLAN = plan_of(federation={"name": "films"}, protection={"name": "none"}, algorithm={"dim": 4})


def ids(epoch: KeyEpoch | None) -> set[str]:
    return {member.client_id for member in epoch.roster.members}


def invited(
    folder: AuthorityFolder, who: Identity, name: str, *, confirm: bool = False
) -> SignedApplication:
    """Return what an applicant hands in with a new invitation."""
    path = change(folder, lambda keys: keys.invite(name, confirm=confirm, now=NOW))
    return SignedApplication.make(who.public, Credentials.load(path, "client.invitation"))


def credentials_of(folder: AuthorityFolder, name: str) -> Credentials:
    return Credentials.load(folder.path / "invitations" / f"{name}.pem", "it")


class FakeCoordinator:
    """A coordinator that takes what it is given, or fails."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch, self.next_epoch = epoch, 0
        self.busy = False
        self.waiting: list[PublicIdentity] = []
        self.installed: list[int] = []
        self.failure: FedrecError | None = None
        self.refusal: FedrecError | None = None

    def status(self) -> RunStatus:
        if self.failure is not None:
            raise self.failure
        return RunStatus(
            federation="films",
            run="r",
            protection="none",
            published_round=0,
            rounds_published=0,
            rounds_planned=3,
            rounds_abandoned=0,
            clients_seen=0,
            clients_in_roster=3,
            finished=False,
            finish_reason="",
            last_event=0,
            epoch=self.epoch,
            next_epoch=self.next_epoch,
        )

    def applicants(self) -> list[SignedApplication]:
        return self.waiting

    def install_epoch(self, bundle: bytes) -> bool:
        if self.refusal is not None:
            raise self.refusal
        number = KeyEpoch.from_json(bundle).roster.epoch
        self.installed.append(number)
        self.epoch, self.next_epoch = (self.epoch, number) if self.busy else (number, 0)
        return not self.busy
