"""The interface of a round: the clients' messages, step by step, until there is a sum.

Under most protections, a round has one step, in which every client sends its protected vector.
Under an interactive one, the clients agree on something first, or help to read the sum afterwards.
Such a protection lists the steps (`Steps`) and implements both sides of them (`RoundProtocol`). A
client, a coordinator or a simulation runs the steps. It stores sent messages and repeats them after
a crash. Only the protection interprets the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedrec.errors import InternalError, ProtocolError
from fedrec.identity.identity import Identity
from fedrec.identity.roster import Roster
from fedrec.identity.secret import Secret
from fedrec.ids import ClientId, RoundId
from fedrec.protection.protection_plan import ProtectionPlan
from fedrec.protection.vector import Integers, VectorSpec

COLLECTING = "collecting"
"""The phase of a round in which its first step's messages arrive."""
SUMMING = "summing"
"""The phase of a round after its last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A message that every client of a round sends at one time.

    Attributes:
        name: the step's name in messages.
        phase: the coordinator's name for the round's phase during the step.
        brings_vector: whether the message is the protected vector, which is uploaded as an update.
        opens_sum: whether its messages let the coordinator read the sum. Privacy is then spent once
            clients are asked for them.
        refusal: the event in a client's audit log if it refuses the step.
    """

    name: str
    phase: str
    brings_vector: bool = False
    opens_sum: bool = False
    refusal: str = "round_step_refused"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a round in order, one of which brings the vectors.

    Attributes:
        all: all steps. The first one has the phase `COLLECTING`. If there are several, clients
            agree on something in it, and their vectors then name it.
    """

    all: tuple[Step, ...]

    def __post_init__(self) -> None:
        first = self.first
        if first.phase != COLLECTING or first.brings_vector != (len(self.all) == 1):
            raise InternalError(
                f"The first step {first.name!r} must have the phase of collecting, and bring the "
                "vectors only if it is the only one."
            )
        if sum(step.brings_vector for step in self.all) != 1:
            raise InternalError("Exactly one step of a round must bring the vectors.")

    @property
    def first(self) -> Step:
        """The first message of a client that trains."""
        return self.all[0]

    @property
    def vector(self) -> Step:
        """The step that brings the vectors."""
        return next(step for step in self.all if step.brings_vector)

    @property
    def are_several(self) -> bool:
        """Whether the clients of a round take steps together, rather than one each by itself."""
        return len(self.all) > 1

    @property
    def open_sum(self) -> bool:
        """Whether reading the sum needs messages of a step from clients."""
        return any(step.opens_sum for step in self.all)

    def in_phase(self, phase: str) -> Step | None:
        """Return the step whose messages arrive in a phase, or None if there is no such step."""
        return next((step for step in self.all if step.phase == phase), None)

    def named(self, name: str) -> Step:
        """Return a step by its name.

        Raises:
            ProtocolError: there is no such step.
        """
        for step in self.all:
            if step.name == name:
                return step
        known = ", ".join(step.name for step in self.all)
        raise ProtocolError(f"The round has no step {name[:20]!r}. Its steps are {known}.")

    def place(self, name: str) -> int:
        """Return the position of a step among all, from 0 (see `named`)."""
        return self.all.index(self.named(name))

    def after(self, phase: str) -> str:
        """Return the phase that follows a phase of messages."""
        phases = [*(step.phase for step in self.all), SUMMING]
        return phases[phases.index(phase) + 1]

    def opens_next(self, phase: str) -> bool:
        """Return whether the messages after a phase let the coordinator read the sum."""
        following = self.in_phase(self.after(phase))
        return following is not None and following.opens_sum

    def is_until_vectors(self, phase: str) -> bool:
        """Return whether a phase is the vectors' phase or comes before it."""
        upto = self.all[: self.place(self.vector.name) + 1]
        return phase in {step.phase for step in upto}


ONE_STEP = Steps((Step(name="vector", phase=COLLECTING, brings_vector=True),))
"""Every client sends its protected vector by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """The terms that all clients of a round must share.

    Attributes:
        seed: the federation's public seed.
        kind: the round's kind.
        base_round: the published round whose model is trained.
        base_state: the digest of that model, 32 bytes.
        roster: the epoch's verified roster.
        minimum_summands: the minimum number of summands of the sum.
    """

    federation: str
    run: str
    round: RoundId
    seed: int
    kind: str
    base_round: RoundId
    base_state: bytes
    catalogue_fingerprint: str
    plan_fingerprint: str
    roster: Roster
    minimum_summands: int


class ClientSide(ABC, Secret):
    """One client's side of one round.

    Every step changes it. The caller stores `to_bytes` and the step's message in one transaction
    **before** it sends the message. After a crash, it sends the stored message again.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def agreement(self) -> bytes:
        """The agreement of the clients before their vectors, which a vector's header names."""

    @abstractmethod
    def answer(self, step: str, material: bytes) -> bytes:
        """Return the message of a step between the first one and the vector.

        Args:
            material: the coordinator's material for the step, from `CoordinatorSide.material`.

        Raises:
            FedrecError: this client must refuse the step.
        """

    @abstractmethod
    def protect(
        self, material: bytes, vector: Integers, spec: VectorSpec, plan: ProtectionPlan
    ) -> bytes:
        """Return the protected vector, the message of the step that brings it.

        Args:
            vector: int64 of shape (length,).
            spec: the vector's description.
            plan: the protection's plan for it.

        Raises:
            FedrecError: this client must refuse the step.
        """

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the state, secrets included, for a file that only this client can read."""


class CoordinatorSide(ABC):
    """The coordinator's side of one round, after the first step is closed.

    A message is checked as a whole before anything changes. After a crash, this object is rebuilt
    from the stored messages, by closing the same steps in the same order.
    """

    @property
    @abstractmethod
    def agreement(self) -> bytes:
        """The agreement that every vector's header must name."""

    @abstractmethod
    def add(self, step: str, client_id: ClientId, body: bytes) -> None:
        """Take a client's message of a step between the first one and the vector.

        Raises:
            FedrecError: the message isn't valid. Nothing changes.
        """

    @abstractmethod
    def add_vector(self, client_id: ClientId, message: bytes) -> None:
        """Add a client's protected vector to the sum.

        Raises:
            FedrecError: the vector isn't valid. The sum doesn't change.
        """

    @abstractmethod
    def close(self, step: str, left_out: Collection[ClientId] = ()) -> None:
        """Begin the next step with the clients whose messages have arrived.

        Args:
            left_out: clients that sent a vector in this step which isn't in the sum.

        Raises:
            FedrecError: the remaining clients can't complete the round.
        """

    @abstractmethod
    def material(self, step: str, client_id: ClientId) -> bytes:
        """Return a client's material for a step, as bytes that `ClientSide` reads."""

    @property
    @abstractmethod
    def can_finish(self) -> bool:
        """Whether the last step has enough messages for the sum."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the sum of the vectors, packed as without protection.

        Raises:
            RoundError: a message for it is missing.
            RevealRefused: honest vectors can't add up to the sum.
        """


class RoundProtocol(ABC):
    """Both sides of the rounds of a protection with several steps, without state."""

    @abstractmethod
    def begin(self, terms: RoundTerms, identity: Identity) -> tuple[ClientSide, bytes]:
        """Return a client's side of a new round, and its first message.

        Call this only once a round. The message names the model that the client starts from.
        """

    @abstractmethod
    def resume(self, terms: RoundTerms, identity: Identity, state: bytes) -> ClientSide:
        """Return a client's side from the bytes of `ClientSide.to_bytes`.

        Raises:
            KeysError: the bytes are damaged or belong to a different round.
        """

    @abstractmethod
    def base_state(self, body: bytes) -> bytes:
        """Return the digest of the model that the author of a first message starts from.

        Raises:
            ProtocolError: the bytes aren't a first message.
        """

    @abstractmethod
    def check_first(self, terms: RoundTerms, client_id: ClientId, body: bytes) -> None:
        """Check a first message by itself.

        Raises:
            FedrecError: the message isn't from this client or for this round, or it can't be used.
        """

    @abstractmethod
    def collect(
        self,
        terms: RoundTerms,
        firsts: Mapping[ClientId, bytes],
        spec: VectorSpec,
        plan: ProtectionPlan,
    ) -> CoordinatorSide:
        """Close the first step, and return the coordinator's side of the next steps.

        Args:
            terms: the terms, with the model that all authors of the first messages start from.
            firsts: the first messages of the participants.
            spec: the description of the round's vectors.
            plan: the protection's plan for them.

        Raises:
            FedrecError: these clients can't complete the round.
        """
