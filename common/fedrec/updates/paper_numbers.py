"""What the CoLR paper counts as the size of a message, and how long its link takes for it.

Table 2 of the paper multiplies numbers of 4 bytes with rounds and divides by the speeds of one
link. Nothing of it is what this package sends: that is the whole vector of an update, counts and
metrics included, under its protection (`fedrec check` prints both).
"""

from __future__ import annotations

from dataclasses import dataclass

_BYTES_PER_NUMBER = 4
_UPLINK_MIB_PER_SECOND = 0.25
_DOWNLINK_MIB_PER_SECOND = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """Numbers in a message of one client and one round, in the clear.

    Attributes:
        upload: numbers that the paper counts upwards; a mean where clients differ.
        download: numbers that it counts downwards.
        payload: numbers of an upload that a receiver could decode; masks and seeds left out.
    """

    upload: int
    download: int
    payload: int

    def link_minutes(self, n_rounds: int) -> float:
        """Return T = R S (1 / 0.75 + 1 / 0.25) / 60 of the paper's Table 2, in minutes.

        S is the size of a message in MiB, R the number of rounds.
        """
        seconds = (
            self.upload / _UPLINK_MIB_PER_SECOND + self.download / _DOWNLINK_MIB_PER_SECOND
        ) * (_BYTES_PER_NUMBER / 2**20)
        return n_rounds * seconds / 60
