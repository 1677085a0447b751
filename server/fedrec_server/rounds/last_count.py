"""Who was counted last, where training rounds are divided by what that count found.

Such rounds are over exactly those clients. One of them that stays away, and one that comes, is a
reason to count again over those who are here: which rows are trained stays as it is, what they are
divided by does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedrec.ids import ClientId

_PASSED_OVER_ROUNDS = 16
"""Training rounds for which a client goes uncounted that was here and did not answer a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCount:
    """The last published count round; all but `clients` is forgotten with the process.

    Attributes:
        clients: whom it counted.
        asked: to whom it was offered; who let it pass is no newcomer for a while.
        trained: training rounds that were published before it.
        waits_since: since when no training round opens because some of them are not here.
        unanswered: whether one of them let a training round pass.
        again: whether the next round counts.
    """

    clients: frozenset[ClientId]
    asked: frozenset[ClientId] = frozenset()
    trained: int = 0
    waits_since: float | None = None
    unanswered: bool = False
    again: bool = False

    def noticed(
        self,
        here: frozenset[ClientId],
        now: float,
        *,
        trained: int,
        patience: float,
        fits: bool,
        has_more: Callable[[frozenset[ClientId]], bool],
    ) -> LastCount:
        """Decide what the next round is, from who is here before it opens.

        Args:
            here: who could be in a sum.
            trained: training rounds that are published.
            patience: seconds that a client may stay away.
            fits: whether a sum may be over `clients`, and them alone.
            has_more: tells whether a count of some clients would find more than the last one did.
        """
        since = None
        if not self.clients <= here:
            # A clock that was set back must not lengthen it.
            since = now if self.waits_since is None else min(self.waits_since, now)
        late = since is not None and now >= since + patience
        passed = self.asked if trained < self.trained + _PASSED_OVER_ROUNDS else frozenset()
        newcomers = has_more(here - (passed - self.clients))
        again = self.unanswered or late or newcomers or not fits
        return replace(self, waits_since=since, again=again)
