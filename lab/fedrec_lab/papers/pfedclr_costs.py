"""Table 6 of the PFedCLR paper: what a model takes at a client and at the server, by rule.

All sizes are float32 numbers over 2^20 bytes, d = 16. With n users and m items:

- client: FedMF holds the item table and a user vector, (m + 1) d numbers; FedRAP a second table,
  (2 m + 1) d; PFedCLR A and B besides, (m + 1) d + r (m + d) with r = 2;
- server: the item table and one uploaded copy of each user, (n + 1) m d, the same for all three.

Every printed value follows from that to its last digit, if LastFM-2K has 1,269 users and 12,322
items: those left when users with fewer than ten interactions are dropped. (The paper's table of
data says 1,600 and 12,454.) A coordinator of fedrec adds uploads up as they come and holds no n
copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DIM, RANK = 16, 2
_NUMBER_BYTES, _MB = 4, 1 << 20

Method = Literal["fedmf", "fedrap", "pfedclr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRow:
    """One method on one data set.

    Attributes:
        client_mb, server_mb: as printed.
    """

    method: Method
    dataset: str
    n_users: int
    n_items: int
    client_mb: float
    server_mb: float

    @property
    def client_bytes(self) -> int:
        """What a client holds, by the rules above."""
        numbers = (self.n_items + 1) * DIM
        if self.method == "fedrap":
            numbers += self.n_items * DIM
        elif self.method == "pfedclr":
            numbers += RANK * (self.n_items + DIM)
        return numbers * _NUMBER_BYTES

    @property
    def server_bytes(self) -> int:
        """What a server holds that keeps every upload, by the rules above."""
        return (self.n_users + 1) * self.n_items * DIM * _NUMBER_BYTES

    @property
    def name(self) -> str:
        """Method and data set."""
        return f"{self.method}/{self.dataset}"

    @property
    def by_rule(self) -> tuple[float, float]:
        """The sizes by the rules, in the paper's unit."""
        return self.client_bytes / _MB, self.server_bytes / _MB


_DATA = {
    "filmtrust": (1002, 2042, 125.0077),
    "ml-100k": (943, 1682, 96.9121),
    "ml-1m": (6040, 3706, 1366.4518),
    "hetrec2011": (2113, 10109, 1304.3473),
    "lastfm-2k": (1269, 12322, 955.1355),
}
_CLIENT: dict[Method, tuple[float, ...]] = {
    "fedmf": (0.1247, 0.1027, 0.2263, 0.6171, 0.7521),
    "fedrap": (0.2493, 0.2054, 0.4525, 1.2341, 1.5042),
    "pfedclr": (0.1404, 0.1157, 0.2547, 0.6943, 0.8463),
}

SPACE = tuple(
    SpaceRow(
        method=method,
        dataset=dataset,
        n_users=n_users,
        n_items=n_items,
        client_mb=client_mb,
        server_mb=server_mb,
    )
    for method, printed in _CLIENT.items()
    for (dataset, (n_users, n_items, server_mb)), client_mb in zip(
        _DATA.items(), printed, strict=True
    )
)
