"""The interface of a round: what its clients send, step by step, until there is a sum.

Under most protections a round has one step: every client sends its protected vector. Under an
interactive one the clients agree on something first, or help to read the sum afterwards. Such a
protection says which steps there are (`Steps`) and plays both sides of them (`RoundProtocol`).
Whoever runs a round, a client, a coordinator or a simulation, follows the steps, keeps what was
sent and sends it again after a crash; what the bytes mean is the protection's matter alone.
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
    """What every client of a round sends at one time.

    Attributes:
        name: what messages call it.
        phase: what the coordinator calls the round meanwhile.
        brings_vector: whether the message is the protected vector, which travels as an update.
        opens_sum: whether its messages let the coordinator read the sum, so that privacy is spent
            once clients are asked for them.
        refusal: what a client's audit log calls its refusal to take the step.
    """

    name: str
    phase: str
    brings_vector: bool = False
    opens_sum: bool = False
    refusal: str = "round_step_refused"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a round in their order; one of them brings the vectors.

    Attributes:
        all: the first is taken in the phase `COLLECTING`. Where there are several, clients agree on
            something in it, which their vectors then name.
    """

    all: tuple[Step, ...]

    def __post_init__(self) -> None:
        first = self.first
        if first.phase != COLLECTING or first.brings_vector != (len(self.all) == 1):
            raise InternalError(
                f"The first step {first.name!r} of a round is taken while it collects; the vectors "
                "come then only where no other step follows."
            )
        if sum(step.brings_vector for step in self.all) != 1:
            raise InternalError("One step of a round brings the vectors.")

    @property
    def first(self) -> Step:
        """What a client that trains sends first."""
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
        """Whether it takes what clients send in one of them to read the sum."""
        return any(step.opens_sum for step in self.all)

    def in_phase(self, phase: str) -> Step | None:
        """Return the step whose messages arrive in a phase; None where none do."""
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
        raise ProtocolError(f"The round has no step {name[:20]!r}; its steps are {known}.")

    def place(self, name: str) -> int:
        """Return the place of a step among all, from 0; see `named`."""
        return self.all.index(self.named(name))

    def after(self, phase: str) -> str:
        """Return the phase that follows on one in which messages arrive."""
        phases = [*(step.phase for step in self.all), SUMMING]
        return phases[phases.index(phase) + 1]

    def opens_next(self, phase: str) -> bool:
        """Tell whether what clients send after a phase lets the coordinator read the sum."""
        following = self.in_phase(self.after(phase))
        return following is not None and following.opens_sum

    def is_until_vectors(self, phase: str) -> bool:
        """Tell whether a phase is that of the vectors, or of a step before."""
        upto = self.all[: self.place(self.vector.name) + 1]
        return phase in {step.phase for step in upto}


ONE_STEP = Steps((Step(name="vector", phase=COLLECTING, brings_vector=True),))
"""Every client sends its protected vector by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """What all clients of a round must have been told alike.

    Attributes:
        seed: the federation's public seed.
        kind: what the round is for.
        base_round: the published round whose model is trained.
        base_state: digest of that model, 32 bytes.
        roster: of the epoch, verified.
        minimum_summands: the sum has at least so many summands.
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

    Every step changes it. The caller stores `to_bytes` together with the step's message in one
    transaction **before** it sends the message, and after a crash sends the stored message again.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def agreement(self) -> bytes:
        """What the clients agreed on before their vectors, which a vector's header names."""

    @abstractmethod
    def answer(self, step: str, material: bytes) -> bytes:
        """Return the message of a step that brings no vector, but for the first.

        Args:
            material: what the coordinator sent for it: `CoordinatorSide.material`.

        Raises:
            FedrecError: this client must not take the step.
        """

    @abstractmethod
    def protect(
        self, material: bytes, vector: Integers, spec: VectorSpec, plan: ProtectionPlan
    ) -> bytes:
        """Return the protected vector, the message of the step that brings it.

        Args:
            vector: int64 of shape (length,).
            spec: what it is.
            plan: what the protection chose for it.

        Raises:
            FedrecError: this client must not take the step.
        """

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the state, secrets included, for a file that only this client can read."""


class CoordinatorSide(ABC):
    """The coordinator's side of one round, once the first step is closed.

    What arrives is checked whole before anything changes. It is made again after a crash by
    handing it the stored messages, and closing the same steps in the same order.
    """

    @property
    @abstractmethod
    def agreement(self) -> bytes:
        """What every vector's header must name."""

    @abstractmethod
    def add(self, step: str, client_id: ClientId, body: bytes) -> None:
        """Take a client's message of a step that brings no vector, but for the first.

        Raises:
            FedrecError: it does not fit; nothing is changed.
        """

    @abstractmethod
    def add_vector(self, client_id: ClientId, message: bytes) -> None:
        """Add a client's protected vector to the sum.

        Raises:
            FedrecError: it does not fit; the sum is as before.
        """

    @abstractmethod
    def close(self, step: str, left_out: Collection[ClientId] = ()) -> None:
        """Go on to the next step with those whose messages are here.

        Args:
            left_out: who sent a vector in this step that is not in the sum.

        Raises:
            FedrecError: those who are left cannot bring the round to an end.
        """

    @abstractmethod
    def material(self, step: str, client_id: ClientId) -> bytes:
        """Return what a client needs for a step, as bytes that `ClientSide` reads."""

    @property
    @abstractmethod
    def can_finish(self) -> bool:
        """Whether the messages of the last step that are here suffice for the sum."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the sum of the vectors, packed as without protection.

        Raises:
            RoundError: something is missing for it.
            RevealRefused: no honest vectors add up to the sum.
        """


class RoundProtocol(ABC):
    """Both sides of the rounds of one protection that takes several steps; holds no state."""

    @abstractmethod
    def begin(self, terms: RoundTerms, identity: Identity) -> tuple[ClientSide, bytes]:
        """Return a client's side of a new round, and its first message.

        Call it once a round, ever. The message names the model that the client starts from.
        """

    @abstractmethod
    def resume(self, terms: RoundTerms, identity: Identity, state: bytes) -> ClientSide:
        """Return a client's side as `ClientSide.to_bytes` left it.

        Raises:
            KeysError: the bytes are damaged or of another round.
        """

    @abstractmethod
    def base_state(self, body: bytes) -> bytes:
        """Return the digest of the model that the author of a first message starts from.

        Raises:
            ProtocolError: the bytes are no first message.
        """

    @abstractmethod
    def check_first(self, terms: RoundTerms, client_id: ClientId, body: bytes) -> None:
        """Check a first message by itself.

        Raises:
            FedrecError: it is not by this client, for this round, or nobody could use it.
        """

    @abstractmethod
    def collect(
        self,
        terms: RoundTerms,
        firsts: Mapping[ClientId, bytes],
        spec: VectorSpec,
        plan: ProtectionPlan,
    ) -> CoordinatorSide:
        """Close the first step and return the coordinator's side of what follows.

        Args:
            terms: with the model that all authors of the first messages start from.
            firsts: the first messages of those who take part.
            spec: what the round's vectors are.
            plan: what the protection chose for them.

        Raises:
            FedrecError: those clients cannot bring the round to an end.
        """
