"""The privacy that each user of this client has spent, independent of other parties' claims.

A coordinator that opens more rounds than its plan allows, abandons rounds after seeing their sums,
or begins another run finds that users no longer take part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrec.errors import StorageError
from fedrec.ids import UserId
from fedrec.privacy import Mechanism, Spent
from fedrec_client.state.private_store import PrivateStore

FORMAT = "fedrec spent privacy 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAccount:
    """The releases about one user.

    Attributes:
        rounds: the user's training rounds in the ledger's run. If these are parts of one release,
            the number of the first part that the user did not contribute to yet.
        spent: their cost and that of all earlier runs.
    """

    rounds: int = 0
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyLedger:
    """All users' accounts. A commit of the state folder replaces the whole value.

    Attributes:
        run: the run of `UserAccount.rounds`.
    """

    run: str = ""
    accounts: Mapping[UserId, UserAccount] = field(default_factory=dict)

    @classmethod
    def of(cls, store: PrivateStore) -> PrivacyLedger:
        """Read the ledger of a state folder."""
        ref = store.state.spent
        return cls() if ref is None else cls.from_bytes(store.read(ref))

    def affordable(
        self,
        mechanism: Mechanism,
        run: str,
        users: Sequence[UserId],
        participating: NDArray[np.bool_] | None,
        part: int,
    ) -> NDArray[np.bool_]:
        """Return a mask of the chosen users that may take part once more, bool (n_users,).

        Args:
            part: the number of training rounds published before this one.
        """
        chosen = np.ones(len(users), dtype=np.bool_) if participating is None else participating
        known: dict[UserAccount, bool] = {}
        may = np.zeros(len(users), dtype=np.bool_)
        for place in np.nonzero(chosen)[0].tolist():
            account = self._account(run, users[place])
            if account not in known:
                cost = _cost(mechanism, account, part)
                known[account] = account.rounds < mechanism.rounds_per_user and (
                    cost is None or (account.spent + cost).fits(mechanism.epsilon, mechanism.delta)
                )
            may[place] = known[account]
        return may

    def charged(
        self,
        mechanism: Mechanism,
        run: str,
        users: Sequence[UserId],
        participating: NDArray[np.bool_],
        part: int,
    ) -> PrivacyLedger:
        """Return the ledger after one more round of these users. See `affordable`."""
        accounts = dict(self.accounts)
        if run != self.run:
            accounts = {user: UserAccount(spent=a.spent) for user, a in accounts.items()}
        for place in np.nonzero(participating)[0].tolist():
            before = self._account(run, users[place])
            cost = _cost(mechanism, before, part)
            after = max(before.rounds, part + 1) if mechanism.in_parts else before.rounds + 1
            spent = before.spent if cost is None else before.spent + cost
            accounts[users[place]] = UserAccount(rounds=after, spent=spent)
        return PrivacyLedger(run=run, accounts=accounts)

    def _account(self, run: str, user: UserId) -> UserAccount:
        found = self.accounts.get(user, UserAccount())
        return found if run == self.run else UserAccount(spent=found.spent)

    def to_bytes(self) -> bytes:
        """Return the ledger as JSON."""
        users = {
            user: [account.rounds, account.spent.gaussian, account.spent.laplace]
            for user, account in self.accounts.items()
        }
        content = {"format": FORMAT, "run": self.run, "users": users}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> PrivacyLedger:
        """Read what `to_bytes` wrote.

        Raises:
            StorageError: the bytes are something else.
        """
        try:
            content = json.loads(raw)
            if content["format"] != FORMAT:
                raise ValueError(f"the format {content['format']!r}, expected {FORMAT!r}")
            accounts = {
                UserId(user): UserAccount(
                    rounds=int(rounds), spent=Spent(gaussian=float(first), laplace=float(second))
                )
                for user, (rounds, first, second) in content["users"].items()
            }
            return cls(run=str(content["run"]), accounts=accounts)
        except (
            ArithmeticError,
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise StorageError(
                f"The privacy ledger cannot be read: {error}.",
                remedy="Restore the state folder from a backup. Without the ledger the privacy "
                "that its users have spent is unknown.",
            ) from None


def _cost(mechanism: Mechanism, account: UserAccount, part: int) -> Spent | None:
    """Return what one more round costs a user, or None for the next part of a paid release.

    A part that was drawn before costs a whole release again: its noise is new.
    """
    is_next = mechanism.in_parts and 0 < account.rounds <= part
    return None if is_next else mechanism.cost
