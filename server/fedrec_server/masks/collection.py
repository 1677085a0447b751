"""The collector of a round under masks, kept equal to what the store holds of the round.

As with sums, what is in memory follows the store, never the other way round: after a crash, or
where something was taken but could not be committed, the collector is made again by replaying the
stored messages and closing the same steps in the same order. Everything here runs in the store's
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fedrec.errors import KeysError, ProtocolError, RoundClosed, RoundError
from fedrec.ids import ClientId, RoundId
from fedrec.protection import NoProtection
from fedrec.protection.masks import Collector, KeyAdvertisement, MaskTerms, MaskWords
from fedrec.wire.mask_bodies import (
    answer_from_bytes,
    inbox_to_bytes,
    key_list_to_bytes,
    keys_from_bytes,
    shares_from_bytes,
    signatures_to_bytes,
)
from fedrec.wire.mask_terms import mask_graph_seed, mask_terms
from fedrec.wire.messages import MaskMessage, MaskStep, UploadHeader
from fedrec_server.rounds.mask_steps import (
    AFTER,
    STEP_OF,
    arrived,
    invited,
    is_enough,
    seconds_of,
    without_vectors,
)
from fedrec_server.rounds.selection import counted_of, has_all
from fedrec_server.rounds.state import Phase, Round
from fedrec_server.run.live_run import LiveRun

__all__ = ["MaskCollection"]

UNMASK_THREADS = 2
REPLAYED: tuple[MaskStep, ...] = ("shares", "signature", "answer")
"""Steps whose messages the collector keeps; keys are closed before it is made."""
PATIENCE = 1 / 3
"""Of an answer's time: so long everybody may answer though fewer would do."""


class MaskCollection:
    """One round at a time."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.forget()

    def forget(self) -> None:
        """Start anew with what the store has."""
        self._place: tuple[RoundId, Phase] | None = None
        self._held: dict[MaskStep, set[ClientId]] = {step: set() for step in REPLAYED}
        self._folded: dict[ClientId, bytes] = {}
        self._collector: Collector | None = None
        self._key_list = b""

    def hear(self, round_: Round, message: MaskMessage) -> None:
        """Take a message that the state machine lets pass.

        Args:
            round_: without the message.

        Raises:
            FedrecError: when it does not fit; nothing is changed.
        """
        if message.step == "keys":
            keys, base_state = keys_from_bytes(message.client_id, message.body)
            keys.verify(self._terms(round_, base_state), self._run.federation.keys.roster)
            keys.check_usable()
            return
        self._take(self._following(round_), message.step, message.client_id, message.body)
        self._held[message.step].add(message.client_id)

    def add(
        self, counted: Mapping[ClientId, UploadHeader], header: UploadHeader, payload: bytes
    ) -> None:
        """Add a masked vector to the sum of those counted so far.

        Raises:
            ProtocolError: when it was masked for another list of keys.
            MalformedUpdate: when it is malformed; the sum is as before.
            DamagedFile: when a counted vector cannot be read any more.
        """
        collector = self._following(self._round_with(counted))
        if header.key_list != collector.round_digest:
            raise ProtocolError(
                f"The vector was masked for another list of keys than round {header.round}'s."
            )
        collector.add_vector(header.client_id, payload)
        self._folded[header.client_id] = header.digest

    def finish(self, counted: Mapping[ClientId, UploadHeader]) -> bytes:
        """Return the sum of exactly the counted vectors, unmasked, as without protection.

        Raises:
            DamagedFile: when one of them cannot be read any more.
            RoundError: when a client's secret cannot be put together.
            RevealRefused: when no honest vectors add up to the sum.
        """
        round_ = self._round_with(counted)
        total = self._following(round_).unmask(threads=UNMASK_THREADS)
        spec = self._run.protection_of(round_.kind).spec
        return NoProtection(spec, NoProtection.plan(spec)).packed_sum(total, len(counted))

    def is_due(self, round_: Round, now: float) -> bool:
        """Tell whether the present step is over: all are there, or the time is."""
        if now >= round_.deadline_at:
            return True
        here = arrived(round_)
        if round_.phase == "collecting":
            return has_all(self._run.state.rules, round_, here)
        if here >= invited(round_):
            return True
        patient_until = round_.deadline_at - (1 - PATIENCE) * seconds_of(
            self._run.state.rules, "unmasking"
        )
        if round_.phase != "unmasking" or now < patient_until:
            return False
        return self._following(round_).can_unmask

    def close(self, round_: Round) -> frozenset[ClientId]:
        """Close the present step; return who is left out of it.

        A client that starts from another model than most, and one that is only summed with others
        that are not here: of the list of keys, and of the sum. Of the sum only: these go on
        taking part.

        Raises:
            RoundError: when too few are left to go on.
            KeysError: when two clients advertised the same key.
            SettingsError: when no graph of so many clients withstands what the plan says.
        """
        if round_.phase == "collecting":
            group = self._participants(round_)
            self._collector = self._with_keys(round_, group)
            self._held = {step: set() for step in REPLAYED}
            self._folded, self._key_list = {}, b""
            left_out = frozenset(round_.messages["keys"]) - group.keys()
        else:
            left_out = frozenset()
            here = arrived(round_)
            if round_.phase in ("sharing", "masking") and not is_enough(
                self._run.state.rules, round_, here
            ):
                raise RoundError(f"Too few whole cells are left with {len(here)} clients.")
            if round_.phase == "masking":
                left_out = here - self._run.state.rules.summable(here)
                round_ = without_vectors(round_, left_out)
            self._close(self._following(round_), round_, round_.phase)
        self._place = (round_.number, AFTER[round_.phase])
        return left_out

    def material(self, round_: Round, client_id: ClientId, step: MaskStep) -> bytes:
        """Return what a participant needs for the present step.

        Raises:
            RoundClosed: when the step is not the present one, or not for this client.
        """
        if STEP_OF.get(round_.phase) != step or client_id not in invited(round_):
            raise RoundClosed(f"Round {round_.number} has no step {step} for this client now.")
        collector = self._following(round_)
        match step:
            case "shares":
                # The same for everybody, and long where there are many.
                self._key_list = self._key_list or key_list_to_bytes(collector.key_list)
                return self._key_list
            case "vector":
                return inbox_to_bytes(collector.inbox(client_id))
            case "signature":
                return collector.survivors
            case "answer":
                return signatures_to_bytes(collector.signatures_for(client_id))
        raise RoundClosed("Nothing is needed to advertise keys.")

    def _round_with(self, counted: Mapping[ClientId, UploadHeader]) -> Round:
        round_ = self._run.state.current
        if round_ is None:
            raise RoundClosed("No round is in progress.")
        return replace(round_, accepted=counted)

    def _following(self, round_: Round) -> Collector:
        """Return the collector of a round whose keys are closed, made again if need be."""
        folded = {client_id: header.digest for client_id, header in round_.accepted.items()}
        here = (round_.number, round_.phase)
        same = (self._place, self._folded) == (here, folded) and all(
            # Views of keys, because this is asked for every message of every client.
            round_.messages[step].keys() == held
            for step, held in self._held.items()
        )
        if same and self._collector is not None:
            return self._collector
        self.forget()
        collector = self._replayed(round_)
        self._place, self._folded, self._collector = here, folded, collector
        self._held = {step: set(round_.messages[step]) for step in REPLAYED}
        return collector

    def _replayed(self, round_: Round) -> Collector:
        collector = self._with_keys(round_, self._participants(round_))
        phase = AFTER["collecting"]
        while True:
            step = STEP_OF.get(phase)
            if step == "vector":
                for client_id, header in sorted(round_.accepted.items()):
                    collector.add_vector(client_id, self._run.read_update(header))
            elif step is not None:
                for client_id, body in sorted(round_.messages[step].items()):
                    self._take(collector, step, client_id, body)
            if phase == round_.phase:
                return collector
            self._close(collector, round_, phase)
            phase = AFTER[phase]

    def _take(self, collector: Collector, step: MaskStep, client_id: ClientId, body: bytes) -> None:
        try:
            if step == "shares":
                collector.add_shares(client_id, shares_from_bytes(body))
            elif step == "signature":
                collector.add_signature(client_id, body)
            else:
                collector.add_answer(client_id, answer_from_bytes(body))
        except KeysError:
            raise RoundClosed("This client is not in the round's list of keys.") from None

    def _close(self, collector: Collector, round_: Round, phase: Phase) -> None:
        match phase:
            case "sharing":
                collector.close_shares()
            case "masking":
                collector.close_vectors(round_.messages["vector"])
            case "signing":
                collector.close_signatures()
            case "unmasking":
                if not collector.can_unmask:
                    raise RoundError("Too few answered to put all clients' secrets together.")

    def _participants(self, round_: Round) -> dict[ClientId, tuple[KeyAdvertisement, bytes]]:
        """Return the keys of the largest group of clients that start from the same model.

        Of them those of whole cells.
        """
        found = {
            client_id: keys_from_bytes(client_id, body)
            for client_id, body in round_.messages["keys"].items()
        }
        sizes = Counter(base_state for _, base_state in found.values())
        if not sizes:
            return {}
        chosen = max(sizes, key=lambda base_state: (sizes[base_state], base_state))
        group = [client_id for client_id, one in found.items() if one[1] == chosen]
        counted = counted_of(self._run.state.rules, round_, group)
        return {client_id: one for client_id, one in found.items() if client_id in counted}

    def _with_keys(
        self, round_: Round, group: Mapping[ClientId, tuple[KeyAdvertisement, bytes]]
    ) -> Collector:
        if not group:
            raise RoundError("No client advertised keys in time.")
        base_state, protection = next(iter(group.values()))[1], self._run.protection_of(round_.kind)
        plan, run = self._run.federation.plan, self._run.state.rules.run
        collector = Collector(
            self._terms(round_, base_state),
            self._run.federation.keys.roster,
            MaskWords(protection.spec, protection.chosen),
            graph_seed=mask_graph_seed(plan, run, round_.number),
        )
        for keys, _ in group.values():
            collector.add_keys(keys)
        collector.close_keys()
        return collector

    def _terms(self, round_: Round, base_state: bytes) -> MaskTerms:
        federation = self._run.federation
        return mask_terms(
            federation.plan,
            plan_fingerprint=federation.plan_fingerprint,
            catalogue_fingerprint=federation.catalogue.fingerprint,
            run=self._run.state.rules.run,
            epoch=round_.epoch,
            round_id=round_.number,
            kind=round_.kind,
            base_round=round_.base_round,
            base_state=base_state,
            minimum_summands=self._run.state.rules.needed,
            n_members=len(federation.keys.roster.members),
        )
