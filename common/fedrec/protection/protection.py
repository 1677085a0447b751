"""The interface of a protection: clients make messages, coordinators add, key holders reveal."""

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
    """The coordinator's half, which adds messages up and has no key."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of added messages."""

    @abstractmethod
    def add(self, message: bytes) -> None:
        """Add one client's message.

        The whole message is checked before the sum changes.

        Raises:
            MalformedUpdate: the message has the wrong length, plan, key or parameter set.
            RoundError: the sum already has as many messages as the plan allows.
        """

    def add_from(self, file: BinaryIO) -> None:
        """Add the message in a file (see `add`)."""
        self.add(file.read())

    @abstractmethod
    def finish(self) -> bytes:
        """Return the present sum, which doesn't depend on the order of the messages.

        It has the length of a message. It is longer if messages carry entries at different indices:
        it has one entry for each index of any message.

        Raises:
            RoundError: nothing was added.
        """

    def refreshed(self, total: bytes) -> bytes:
        """Return a sum in the form for parties that didn't recompute it.

        If fresh randomness can be added without a key, it is added. Otherwise, the sum is returned
        unchanged. Either form reveals the same values, but only the result of `finish` is compared.

        Raises:
            MalformedUpdate: the bytes aren't a sum of this plan and key.
        """
        return total


class EnvelopedSum(Accumulator):
    """A coordinator's half for messages in envelopes, which also counts them."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._count = 0

    @property
    def count(self) -> int:
        """The number of added messages."""
        return self._count

    def add(self, message: bytes) -> None:
        """Add one message after checking all of it (see `Accumulator.add`)."""
        self.add_from(BytesIO(message))

    def _check(self, file: BinaryIO) -> None:
        """Check a message's header and length, and that the sum has room. The body comes next.

        Raises:
            MalformedUpdate, RoundError: as in `Accumulator.add`.
        """
        length = file.seek(0, SEEK_END)
        file.seek(0)
        self._envelope.check_message(file.read(HEADER_BYTES), length)
        if self._count >= self._envelope.max_summands:
            raise RoundError(
                f"The plan allows at most {self._envelope.max_summands} messages in a sum."
            )

    def finish(self) -> bytes:
        """Return the sum (see `Accumulator.finish`)."""
        if not self._count:
            raise RoundError("There is no sum of zero messages.")
        return b"".join((self._envelope.close_sum(b"", self._count), *self._parts()))

    @abstractmethod
    def _parts(self) -> Iterable[bytes | memoryview]:
        """Return the body of the sum in consecutive pieces."""


class Member(Secret, ABC):
    """A client's half, which protects its own vector, and reveals sums if it has the key."""

    @abstractmethod
    def protect(self, vector: Integers, name: bytes = b"") -> bytes:
        """Return the message for an int64 vector of shape (length,), always of one length.

        Args:
            name: the name of the author and the round under a plan with tags. It must never name a
                second message.

        Raises:
            MalformedUpdate: the type or shape is wrong, or a value is outside its segment's bound.
        """

    @abstractmethod
    def reveal(
        self, total: bytes, n_summands: int, names: tuple[bytes, ...] | None = None
    ) -> Integers:
        """Return the exact sum of ``n_summands`` messages as int64 of shape (length,).

        Without names, this detects damage and foreign keys, but not a coordinator that builds its
        own sums. The caller must first recompute ``total`` from signed contributions. A party that
        chooses the revealed sums, or only watches which sums are refused, learns about the key.

        Args:
            names: the names of the messages that the sum must contain, under a plan with tags. None
                if the caller added them up itself.

        Raises:
            MalformedUpdate: the bytes aren't a sum of this plan and key.
            RevealRefused: the number of summands is wrong, honest messages can't add up to the
                values, or the sum isn't that of the named messages.
            KeysError: this half only encrypts, or it was closed.
        """

    @abstractmethod
    def over(self, protection: Protection) -> Member:
        """Return this half for another vector, under the same key.

        Args:
            protection: the result of `Protection.over`.
        """

    @abstractmethod
    def close(self) -> None:
        """Delete the key, if any. Afterwards, nothing can be protected or revealed."""


class Protection(ABC):
    """One protection with one plan, without secrets.

    Implement `OneStepProtection`, `EncryptingProtection` or `SteppedProtection`.

    Attributes:
        name: the protection's name in settings.
        needs_reveal: whether only key holders can read a sum.
        hides_updates: whether single updates are hidden from the coordinator.
        presets: the names of its parameter sets, the default first.

    Args:
        spec: the vector to protect.
        plan: the result of `plan` for the vector, here or at the coordinator.
        largest: the protection that shares its parameters and keys (see `over`).

    Raises:
        PlanMismatch: this version wouldn't make that plan for that vector.
    """

    name: ClassVar[str]
    needs_reveal: ClassVar[bool]
    hides_updates: ClassVar[bool] = True
    steps: ClassVar[Steps] = ONE_STEP
    """The steps of a round's clients. A `SteppedProtection` sets several."""
    settings_type: ClassVar[type[ProtectionSettings]] = ProtectionSettings
    """The protection's section of the settings.

    A subclass of `ProtectionSettings` adds its own settings."""
    can_tag: ClassVar[bool] = False
    """Whether sums can carry tags, so that they needn't be recomputed before they are opened."""
    presets: ClassVar[tuple[str, ...]]

    def __init__(
        self, spec: VectorSpec, plan: ProtectionPlan, *, largest: Protection | None = None
    ) -> None:
        own = None
        if plan.preset in self.presets:
            own = self._plan(spec, plan.preset, largest)
        if own is None or own.fingerprint() != plan.fingerprint():
            raise PlanMismatch(
                f"The plan {plan.protection}/{plan.preset} isn't the one that this version makes "
                f"with {self.name} for this vector.",
                remedy="Install the same release of fedrec, and use the federation's settings.",
            )
        self.spec = spec
        self.chosen = own
        self._largest = largest or self

    def over(self, spec: VectorSpec) -> Self:
        """Return the protection of another vector, under the same parameters and keys.

        Contexts and secrets are those of the largest vector. Marks and lengths distinguish messages
        of different vectors.

        Raises:
            SettingsError: the vector isn't a part of the largest one, for which the bounds on
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
        """Choose parameters for a vector. "default" or None is the protection's first preset.

        Raises:
            SettingsError: no parameters meet a rule. The error names the rule, and a choice that
                works.
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
        """Choose parameters for a vector under an existing preset.

        Args:
            largest: the plan whose vector contains this one, and whose parameters it must have (see
                `over`). It has no effect if the parameters follow from the preset alone.
        """

    @abstractmethod
    def generate(self) -> tuple[bytes, SecretKey]:
        """Return the coordinator's context and the members' secret.

        This method itself returns those of a protection without a key.
        """
        return Envelope.new_context(self.chosen, keyed=False), SecretKey._holding(b"none")

    def envelope(self, context: bytes) -> Envelope:
        """Read a context, which names the largest vector's plan.

        Raises:
            KeysError: the context contains a key, or belongs to other parameters.
        """
        return Envelope.of(self.chosen, context, named=self._largest.chosen)


class OneStepProtection(Protection):
    """A protection whose clients make messages alone, for a sum at the coordinator."""

    @abstractmethod
    def accumulator(self, context: bytes) -> Accumulator:
        """Return the coordinator's half, empty."""

    @abstractmethod
    def member(self, context: bytes, secret: bytes | SecretKey, *, tag_key: bytes = b"") -> Member:
        """Return a client's half.

        Args:
            tag_key: the 32 bytes that members share, under a plan with tags.

        Raises:
            KeysError: the secret doesn't match the context.
        """


class EncryptingProtection(OneStepProtection):
    """A protection with an encryption key that opens nothing.

    Clients can do without the secret key, so that only the key authority opens sums.
    """

    needs_reveal: ClassVar[bool] = True

    @abstractmethod
    def encryption_key(self, secret: bytes | SecretKey) -> bytes:
        """Return the part of a secret that only encrypts, for `encryptor`.

        Raises:
            KeysError: this isn't one of the protection's secrets.
        """

    @abstractmethod
    def encryptor(self, context: bytes, key: bytes, *, tag_key: bytes = b"") -> Member:
        """Return the half of a client without a secret key, whose `reveal` always refuses.

        Args:
            key: the result of `encryption_key`.
            tag_key: the same as in `member`.

        Raises:
            KeysError: the key doesn't match the context, or is more than an encryption key.
        """


class SteppedProtection(Protection):
    """A protection whose clients make and sum messages together in a round, without a key."""

    needs_reveal: ClassVar[bool] = False
    presets: ClassVar[tuple[str, ...]] = ("default",)

    def generate(self) -> tuple[bytes, SecretKey]:
        """Return a context and a secret without a key."""
        return super().generate()

    @abstractmethod
    def round_protocol(self, settings: ProtectionSettings) -> RoundProtocol:
        """Return both sides of this protection's rounds.

        Args:
            settings: settings of this protection's `settings_type`.
        """


def in_one_step(protection: Protection) -> OneStepProtection:
    """Return a protection whose clients make messages alone.

    Raises:
        RoundError: they make and sum them together in a round.
        SettingsError: the protection has one step, but isn't a `OneStepProtection`.
    """
    if protection.steps.are_several:
        raise made_together(protection)
    if not isinstance(protection, OneStepProtection):
        raise SettingsError(
            f"Protection {protection.name} has one step, but its class isn't a OneStepProtection.",
            remedy="Derive the class from OneStepProtection, or from SteppedProtection and set "
            "its steps.",
        )
    return protection


def with_encryptor(protection: Protection) -> EncryptingProtection:
    """Return a protection with an encryption key.

    Raises:
        KeysError: each of its keys opens sums, or it has none.
    """
    if not isinstance(protection, EncryptingProtection):
        raise KeysError(
            f"Protection {protection.name} has no key that only encrypts.",
            remedy='Set protection.key_holder = "members", or protection.name = "bfv".',
        )
    return protection


def protocol_of(protection: Protection, settings: ProtectionSettings) -> RoundProtocol:
    """Return both sides of a protection's rounds, if they take several steps.

    Args:
        settings: settings of this protection's `settings_type`.

    Raises:
        RoundError: a round has one step, in which every client sends the result of
            `Member.protect`.
    """
    if not isinstance(protection, SteppedProtection):
        raise RoundError(f"Under {protection.name}, the clients of a round take no steps together.")
    return protection.round_protocol(settings)


def made_together(protection: Protection) -> RoundError:
    """Return the error of a message or a sum outside a round of several steps."""
    return RoundError(
        f"Under {protection.name}, the clients of one round make and sum messages together."
    )


def encrypts_only() -> KeysError:
    """Return the error of a half without a secret key that was asked to reveal."""
    return KeysError(
        "This client's key encrypts, but doesn't open sums.",
        remedy="Only the key authority opens sums in this federation (protection.key_holder).",
    )


def check_count(found: int, n_summands: int, max_summands: int) -> None:
    """Refuse a sum whose number of summands isn't the expected one, or isn't in 1..max."""
    if not 1 <= n_summands <= max_summands:
        raise RevealRefused(
            f"{n_summands} summands were requested, but the plan allows 1..{max_summands}."
        )
    if found != n_summands:
        raise RevealRefused(f"The sum has {found} summands, but {n_summands} were expected.")
