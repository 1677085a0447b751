"""The interface of a protection: what clients make, coordinators add, and key holders reveal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from io import SEEK_END, BytesIO
from typing import BinaryIO, ClassVar, Self

from fedrec.errors import KeysError, PlanMismatch, RevealRefused, RoundError, SettingsError
from fedrec.identity.secret import Secret, SecretKey
from fedrec.protection.protection_plan import HEADER_BYTES, Envelope, ProtectionPlan
from fedrec.protection.round_protocol import ONE_STEP, RoundProtocol, Steps
from fedrec.protection.settings import ProtectionSettings
from fedrec.protection.vector import Integers, VectorSpec


class Accumulator(ABC):
    """The coordinator's half: adds messages up, and holds no key."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many messages were added."""

    @abstractmethod
    def add(self, message: bytes) -> None:
        """Add one client's message.

        The whole message is checked before the sum changes.

        Raises:
            MalformedUpdate: for a message of another length, plan, key or parameter set.
            RoundError: when the sum already has as many messages as the plan allows.
        """

    def add_from(self, file: BinaryIO) -> None:
        """Add the message that is a file's content; see `add`."""
        self.add(file.read())

    @abstractmethod
    def finish(self) -> bytes:
        """Return the sum so far, whatever the order of the messages.

        It is as long as a message, and longer where messages carry entries at indices of their
        own: it has one for each index that any of them had.

        Raises:
            RoundError: when nothing was added.
        """

    def refreshed(self, total: bytes) -> bytes:
        """Return a sum as the coordinator may hand it to a party that did not recompute it.

        Where fresh randomness can be added without a key, it is; elsewhere the sum is returned as
        it is. Either way it reveals as before, but only what `finish` returned is compared.

        Raises:
            MalformedUpdate: for bytes that are no sum of this plan and key.
        """
        return total


class EnvelopedSum(Accumulator):
    """A coordinator's half whose messages come in envelopes; counts them."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages were added."""
        return self._count

    def add(self, message: bytes) -> None:
        """Add one message after checking all of it; see `Accumulator.add`."""
        self.add_from(BytesIO(message))

    def _check(self, file: BinaryIO) -> None:
        """Check a message's header and length, and that there is room; its body comes next.

        Raises:
            MalformedUpdate, RoundError: see `Accumulator.add`.
        """
        length = file.seek(0, SEEK_END)
        file.seek(0)
        self._envelope.check_message(file.read(HEADER_BYTES), length)
        if self._count >= self._envelope.max_summands:
            raise RoundError(
                f"The plan allows {self._envelope.max_summands} messages in a sum, not one more."
            )

    def finish(self) -> bytes:
        """Return the sum; see `Accumulator.finish`."""
        if not self._count:
            raise RoundError("A sum of no messages does not exist.")
        return b"".join((self._envelope.close_sum(b"", self._count), *self._parts()))

    @abstractmethod
    def _parts(self) -> Iterable[bytes | memoryview]:
        """Return the body of the sum, in pieces that follow each other."""


class Member(Secret, ABC):
    """A client's half: protects its own vector, and reveals sums where it holds the key."""

    @abstractmethod
    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message for an int64 vector of shape (length,), always of one length.

        Args:
            name: under a plan with tags says whose message it is and of which round; it must
                never name a second one.

        Raises:
            MalformedUpdate: for another type or shape, or a value outside its segment's bound.
        """

    @abstractmethod
    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the exact sum of ``n_summands`` messages as int64 of shape (length,).

        Without names it detects damage and foreign keys, not a coordinator that builds sums of
        its own: a caller first recomputes ``total`` from signed contributions, because a party that
        may choose what is revealed, or only watch which sums are refused, learns about the key.

        Args:
            names: of the messages whose sum it must be, under a plan with tags; None where the
                caller added them up itself.

        Raises:
            MalformedUpdate: for bytes that are no sum of this plan and key.
            RevealRefused: for another number of summands, values that no honest messages sum
                to, or any sum but that of the named messages.
            KeysError: this half encrypts only, or was closed.
        """

    @abstractmethod
    def over(self, protection: Protection) -> Member:
        """Return this half for another vector, under the same key.

        Args:
            protection: what `Protection.over` returned.
        """

    @abstractmethod
    def close(self) -> None:
        """Forget the key, if any; nothing can be protected or revealed afterwards."""


class Protection(ABC):
    """One protection with one plan; public data only.

    Attributes:
        name: its name in settings.
        needs_reveal: whether only key holders can read a sum.
        hides_updates: whether the coordinator cannot read a single update.
        presets: names of its parameter sets, the default first.

    Args:
        spec: the vector to protect.
        plan: what `plan` returned for it, here or at the coordinator.
        largest: whose parameters and keys it shares; see `over`.

    Raises:
        PlanMismatch: when this version would not make that plan for that vector.
    """

    name: ClassVar[str]
    needs_reveal: ClassVar[bool]
    hides_updates: ClassVar[bool] = True
    steps: ClassVar[Steps] = ONE_STEP
    """What every client of a round sends; with more than one step see `SteppedProtection`."""
    settings_type: ClassVar[type[ProtectionSettings]] = ProtectionSettings
    """Its section of the settings; a subclass of `ProtectionSettings` adds settings of its own."""
    has_encryptor: ClassVar[bool] = False
    """Whether a key that encrypts opens nothing, so that the key authority alone can open sums."""
    can_tag: ClassVar[bool] = False
    """Whether sums can carry tags, so that they need not be recomputed to be opened."""
    presets: ClassVar[tuple[str, ...]]

    def __init__(
        self, spec: VectorSpec, plan: ProtectionPlan, *, largest: Protection | None = None
    ) -> None:
        own = None
        if plan.preset in self.presets:
            own = self._plan(spec, plan.preset, largest)
        if own is None or own.fingerprint() != plan.fingerprint():
            raise PlanMismatch(
                f"The plan {plan.protection}/{plan.preset} is not what this version plans with "
                f"{self.name} for this vector.",
                remedy="Install the same fedrec and use the federation's settings.",
            )
        self.spec = spec
        self.chosen = own
        self._largest = largest or self

    def over(self, spec: VectorSpec) -> Self:
        """Return the protection of another vector, under the same parameters and keys.

        Contexts and secrets are those of the largest vector; messages of different vectors are
        told apart by their marks and lengths.

        Raises:
            SettingsError: the vector does not fit into the largest one, for which the bounds on
                noise and overflow were proven.
        """
        if spec == self.spec:
            return self
        largest = self._largest
        spec.check_part_of(largest.spec)
        plan = self._plan(spec, largest.chosen.preset, largest)
        return type(self)(spec, plan, largest=largest)

    @classmethod
    def plan(cls, spec: VectorSpec, *, preset: str | None = None) -> ProtectionPlan:
        """Choose parameters for a vector; "default" or None is the protection's first preset.

        Raises:
            SettingsError: naming the rule that no parameters can meet, and what would work.
        """
        chosen = cls.presets[0] if preset in (None, "default") else preset
        if chosen not in cls.presets:
            raise SettingsError(
                f"{cls.name} has no preset {chosen!r}.",
                remedy=f"Use one of {', '.join(cls.presets)}.",
            )
        return cls._plan(spec, chosen)

    @classmethod
    @abstractmethod
    def _plan(
        cls, spec: VectorSpec, preset: str, largest: Protection | None = None
    ) -> ProtectionPlan:
        """Choose parameters for a vector under a preset that exists.

        Args:
            largest: whose vector this is a part of, and whose parameters it is to have; see `over`.
                Where these follow from the preset alone, it changes nothing.
        """

    @abstractmethod
    def generate(self) -> tuple[bytes, SecretKey]:
        """Return the coordinator's context, which holds no key, and the members' secret."""

    def envelope(self, context: bytes) -> Envelope:
        """Read a context, which names the largest vector's plan.

        Raises:
            KeysError: it holds any key, or belongs to other parameters.
        """
        return Envelope.of(self.chosen, context, named=self._largest.chosen)

    @abstractmethod
    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty."""

    @abstractmethod
    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half.

        Args:
            tag_key: 32 bytes that members share, under a plan with tags.

        Raises:
            KeysError: when the secret is not the context's.
        """

    def encryption_key(self, secret: bytes | SecretKey) -> bytes:
        """Return the half of a secret that encrypts and opens nothing, for `encryptor`.

        Raises:
            KeysError: where the protection has no such half, or this is no secret of it.
        """
        raise KeysError(
            f"Protection {self.name} has no key that only encrypts.",
            remedy='Set protection.key_holder = "members", or protection.name = "bfv".',
        )

    def encryptor(self, context: bytes, key: bytes, *, tag_key: bytes = b"") -> Member:
        """Return the half of a client that holds no secret key: its `reveal` always refuses.

        Args:
            key: what `encryption_key` returned.
            tag_key: see `member`.

        Raises:
            KeysError: when the key is not the context's, or is more than an encryption key.
        """
        raise KeysError(f"Protection {self.name} has no key that only encrypts.")


class SteppedProtection(Protection):
    """A protection of which there is nothing outside a round, and of which nobody holds a key."""

    needs_reveal: ClassVar[bool] = False
    presets: ClassVar[tuple[str, ...]] = ("default",)

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context that names no key, and a secret in which there is none."""
        return Envelope.new_context(self.chosen, keyed=False), SecretKey._holding(b"none")

    def accumulator(self, context: bytes) -> Accumulator:
        """Refuse: a sum is that of one round, a `CoordinatorSide`'s."""
        raise self._without_round()

    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half outside a round, which can do nothing."""
        self.envelope(context)
        return _Alone(self._without_round())

    @abstractmethod
    def round_protocol(self, settings: ProtectionSettings) -> RoundProtocol:
        """Return both sides of this protection's rounds.

        Args:
            settings: of this protection's `settings_type`.
        """

    def _without_round(self) -> RoundError:
        return RoundError(
            f"Under {self.name} messages are made and summed by the clients of one round."
        )


def protocol_of(protection: Protection, settings: ProtectionSettings) -> RoundProtocol:
    """Return both sides of a protection's rounds, where they take several steps.

    Args:
        settings: of this protection's `settings_type`.

    Raises:
        RoundError: a round has one step, in which every client sends what `Member.protect`
            returns.
    """
    if not isinstance(protection, SteppedProtection):
        raise RoundError(f"Under {protection.name} the clients of a round take no steps together.")
    return protection.round_protocol(settings)


class _Alone(Member):
    """A client outside a round: without the others there is nothing to protect with."""

    def __init__(self, refusal: RoundError) -> None:
        self._refusal = refusal

    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Refuse; see `ClientSide.protect`."""
        raise self._refusal

    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Refuse; see `CoordinatorSide.finish`."""
        raise self._refusal

    def over(self, protection: Protection) -> Member:
        """Return itself, which can do nothing with any vector."""
        return self

    def close(self) -> None:
        """Do nothing: there is no key."""


def encrypts_only() -> KeysError:
    """Return the error of a half that was asked to reveal and holds no secret key."""
    return KeysError(
        "This client holds the key that encrypts, and none that opens sums.",
        remedy="Only the key authority opens sums in this federation (protection.key_holder).",
    )


def check_count(found: int, n_summands: int, max_summands: int) -> None:
    """Refuse a sum whose number of summands is not the expected one, or not in 1..max."""
    if not 1 <= n_summands <= max_summands:
        raise RevealRefused(
            f"{n_summands} summands were asked for; the plan allows 1..{max_summands}."
        )
    if found != n_summands:
        raise RevealRefused(f"The sum says {found} summands; {n_summands} were expected.")
