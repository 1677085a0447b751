"""What the coordinator remembers of this client, held against what this client remembers.

A client answers no round twice, and writes down what it sends before it sends it. An update with
its own signature that it does not know was made from another copy of its folder. A coordinator
that does not know what it once acknowledged, or a round that it published, was set back.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import (
    CoordinatorWentBack,
    FedrecError,
    FolderIsOld,
    RefusedError,
    SecondCopy,
)
from fedrec.follower.context import RoundContext
from fedrec.follower.shared_model import SharedModel
from fedrec.follower.stored_state import SentUpdate
from fedrec.identity.public import verify
from fedrec.ids import RoundId
from fedrec.wire.messages import NOTHING, Remembered, Task, UploadHeader


class RollbackDetection:
    """Recognises who was set back: the coordinator, or this folder."""

    def __init__(self, context: RoundContext[SharedModel]) -> None:
        self._context = context
        self._membership = context.membership
        self._store = context.store
        self._journal = context.journal
        self._went_back: tuple[RoundId, RoundId] | None = None

    def remembered(self) -> Remembered:
        """Return what to tell the coordinator with the next question."""
        state = self._store.state
        sent = state.acknowledged
        known = NOTHING if sent is None else Remembered(round=sent.round, digest=sent.digest)
        if self._went_back is None:
            return known
        return replace(known, statement=state.statement, header=state.acknowledged_header)

    def agrees(self, task: Task) -> bool:
        """Tell whether the coordinator knows what it once knew; where not, it is to be waited for.

        Raises:
            FolderIsOld: an older copy of this folder was brought back, or the folder was copied.
            SecondCopy: two copies of this folder answered the same round.
            RefusedError: what is said to be this client's own update is not.
        """
        state = self._store.state
        if task.published_round < state.version:
            return self._wait_for(state.version, task.published_round)
        if task.latest is None:
            self._went_back = None
            return True
        header, sent = task.latest.header, state.acknowledged
        least = RoundId(0) if sent is None else sent.round
        found = RoundId(0) if header is None else header.round
        if header is not None:
            try:
                self._check(header)
            except FedrecError as error:
                self._refuse("latest_refused", header.round, error)
        if found < least and least <= state.version:
            return self._wait_for(least, found)
        if header is None or found < least:
            # Of a round that nobody published: the same bytes can go out again.
            self._store.take_back(header)
            self._journal.tell("forgotten", least, detail="sent again if it is asked for")
            self._went_back = None
            return True
        if not self._is_known(header):
            self._refuse("folder_is_old_or_copied", found, self._of_another_copy(header))
        self._store.acknowledge(header)
        self._went_back = None
        return True

    def _is_known(self, header: UploadHeader) -> bool:
        state = self._store.state
        found = SentUpdate(round=header.round, digest=header.digest)
        return found == state.acknowledged or found in state.unacknowledged

    def _check(self, header: UploadHeader) -> None:
        member = self._membership
        if (header.client_id, header.run) != (member.client_id, member.run):
            raise RefusedError("The coordinator says that another's update was this client's.")
        verify(member.identity.public.signing_key, header.statement(), header.signature)

    def _of_another_copy(self, header: UploadHeader) -> FedrecError:
        state, folder = self._store.state, self._store.folder
        sent = (*state.unacknowledged, *([state.acknowledged] if state.acknowledged else []))
        if any(one.round == header.round for one in sent):
            return SecondCopy(
                f"Round {header.round} was answered from two copies of {folder}.",
                remedy="Keep both, and let only the other one run: the coordinator holds its "
                "answer. Nothing was changed here.",
            )
        return FolderIsOld(
            f"The coordinator holds this client's update of round {header.round}; {folder} ends "
            f"with round {state.answered_round}: it is an older copy, or another copy of it runs.",
            remedy="Run the newest copy of the folder, and only that one. Where it is lost, keep "
            "this one, and ask the key authority to replace this client (fedrec keys replace). "
            "Nothing was changed here.",
        )

    def _refuse(self, event: str, round_id: RoundId, error: FedrecError) -> None:
        self._context.refused(event, round_id, error)
        raise error

    def _wait_for(self, known: RoundId, said: RoundId) -> bool:
        if self._went_back != (known, said):
            self._went_back = (known, said)
            error = CoordinatorWentBack(
                f"The coordinator went back from round {known} to {said}. This client waits and "
                "keeps what it has."
            )
            self._context.refused("coordinator_went_back", known, error)
            self._journal.tell("coordinator_went_back", known, detail=error.message)
        return False
