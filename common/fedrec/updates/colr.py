"""CoLR: low-rank updates within a subspace that is drawn anew in every round. Also SCoLR.

"Towards Efficient Communication and Secure Federated Recommendation System via Low-rank Training"
(Nguyen et al., WWW 2024), sections 4.2-4.3 and Algorithm 1. Items are rows here and columns in the
paper, so its update B A, with B d x r and A r x N, is A B here. r = `update.rank`.

Algorithm 1, for a base with the loss l of a sample, step size eta and `Sgd.per_occurrence`:

    B = sqrt(d / r) x (r orthonormal rows)          `CoLR.basis`
    A = 0                                           `LowRankRows.begin` in training/held.py
    q_i = Q_i + A_i B                               `LowRankRows.meant` in training/held.py
    A_i <- A_i - eta sqrt(r/d) mean over occurrences of i of (dl/dq_i) B^T
                                                    `TrainedBlock._move`, training/trained_block.py
    A_i <- (sum over users of A_i) / max(n_i, 1)    `mean_changes` in algorithms/sent.py
    Q <- Q + A B                                    `UpdateStructure.merge` in updates/update.py

n_i users touched item i. sqrt(r/d) is `UpdateStructure.gradient_scale`. For FedMF, dl/dq_i is
e p + 2 gamma q_i (`fedrec.algorithms.fedmf`). tests/reference/plain_fedmf.py has these lines for
one user at a time.

Differences from the paper, all as in the released code:

- Algorithm 1 leaves the distribution of B open. Appendix D analyses N(0, 1/r) entries, which have
  the same E[B^T B] = I as the scaled orthonormal rows.
- sqrt(r/d) on the gradient is not in the paper. Since B B^T = (d/r) I, a step with it moves q_i as
  far, in the mean square, as a dense step.
- Algorithm 1 weighs A by N_u / N and names a ServerOpt with the rate eta_s. Here the mean over the
  users that touched the item is added as it is.

Paper and code add A B to Q at the start of the next round. Here the published version has it, which
is the same model.

At rank = dim, B only rotates coordinates. CoLR then is FedMF up to rounding, if nothing is clipped.

SCoLR is CoLR whose users each train only the number of rows of B that they can afford (section 4.4,
eq. 6 and Algorithm 2, without released code). r = `update.rank` is the global rank. In each round a
user draws r_u, uniform on 1..r, and a set S_u of r_u rows of B, uniform over all such sets. Then
q_i = Q_i + A_i B[S_u], and all else is as in CoLR. B keeps its scale sqrt(d / r) and the gradient
of A its factor sqrt(r / d) for any r_u, so r_u = r for all users is CoLR. The draws are in
tests/reference/plain_updates.py.

The vector that travels is n_items x r for all users, zero outside S_u: protected sums need equal
lengths, and a length would reveal r_u.

Algorithm 2 adds (N_u / N) S_u A_u, where S_u is r_u x r. Eq. 6 has B S_u A_u, which needs its
transpose. Here B[S_u] are the chosen rows of B (`BlockUsers.basis` in training/held.py), and users
count alike, as in CoLR's code. With k for a row of B, `update.normaliser` gives the divisor:

    item     A_ik <- (sum over users of A_ik) / n_i     n_i users touched item i
    entry    A_ik <- (sum over users of A_ik) / n_ik    n_ik of them also trained row k

Rows that a user omitted count as zeros under "item", so a step is (r + 1) / 2r of CoLR's on
average. Neither divisor is the paper's.

The paper draws r_u for each user independently. So does `update.subset` = "user", and sums do not
depend on how users are grouped into clients. With "client", all users of a client share one S,
which a silo could send without its zeros. A federation of few clients then skips rows of B in some
rounds, and a simulation by one party has one S for all users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrec.random_streams import (
    Purpose,
    mix,
    orthonormal_rows,
    shift_right,
    stream_key,
    user_stream,
)
from fedrec.updates.update import PaperNumbers, UpdateStructure

if TYPE_CHECKING:
    import torch

    from fedrec.updates.update import UpdateSettings


class CoLR(UpdateStructure):
    """Freeze Q, draw B (rank x dim) from the public seed, train and send A (n_items x rank)."""

    name: ClassVar[str] = "colr"

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.rank = settings.rank

    @staticmethod
    def problem(settings: UpdateSettings, dim: int) -> str:
        """Return why the rank cannot work with `dim`, or an empty string."""
        if settings.rank <= dim:
            return ""
        return (
            f"update.rank is {settings.rank}, but algorithm.dim is {dim}. A rank is at most dim. "
            f'Lower update.rank to {dim} or less, or set update.structure = "dense".'
        )

    @property
    def width(self) -> int:
        """Values per item: the rank."""
        return self.rank

    def basis(self, seed: int, round_id: int) -> NDArray[np.float64]:
        """Return B = sqrt(dim / rank) x orthonormal rows, drawn from (seed, round)."""
        rows = orthonormal_rows(stream_key(seed, Purpose.BASIS, round_id), self.rank, self.dim)
        return rows * float(np.sqrt(self.dim / self.rank))

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return n_items x rank both ways. B comes from a seed."""
        size = n_items * self.rank
        return PaperNumbers(upload=size, download=size, payload=size)


class SCoLR(CoLR):
    """CoLR at rank r, in which every user trains r_u rows of B. See the module's docstring."""

    name: ClassVar[str] = "scolr"

    def __init__(self, settings: UpdateSettings, dim: int) -> None:
        super().__init__(settings, dim)
        self.subset = settings.subset
        self.counts_entries = settings.normaliser == "entry"

    @staticmethod
    def warnings(settings: UpdateSettings) -> list[str]:
        """Warn about the cost of `subset` = "client"."""
        if settings.subset == "user":
            return []
        return [
            'update.subset = "client": all users of a client share one subset of B, so results '
            "depend on how users are grouped into clients. With one client, there is one subset "
            "for all users."
        ]

    def members(
        self, seed: int, round_id: int, user_keys: torch.Tensor, party_key: int
    ) -> torch.Tensor:
        """Draw S_u: r_u from the stream's word 0, then the rows with the r_u smallest words."""
        import torch

        keys = user_keys if self.subset == "user" else torch.full_like(user_keys, party_key)
        streams = user_stream(stream_key(seed, Purpose.SUBSET, round_id), keys)
        counters = torch.arange(self.rank + 1, device=keys.device)
        words = shift_right(mix(streams[:, None] + counters), 32)
        sizes = 1 + ((words[:, 0] * self.rank) >> 32)
        order = torch.argsort(words[:, 1:], dim=1, stable=True)
        place = torch.argsort(order, dim=1, stable=True)
        chosen: torch.Tensor = place < sizes[:, None]
        return chosen.to(torch.float32)

    def paper_numbers(self, n_items: int) -> PaperNumbers:
        """Return n_items x (rank + 1) / 2 upwards, the mean, and n_items x rank downwards."""
        mean = -(-n_items * (self.rank + 1) // 2)
        return PaperNumbers(upload=mean, download=n_items * self.rank, payload=mean)
