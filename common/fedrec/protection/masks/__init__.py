"""Secure aggregation by masks: the coordinator learns the sum of a round and no single vector.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning (CCS 2017),
on the sparse graph of Bell et al., Secure single-server aggregation with (poly)logarithmic
overhead (CCS 2020), called SecAgg+. Every vector carries one mask of its client's own and one in
common with every partner, which the partner subtracts. Those in common cancel in the sum; what
is left of clients that dropped out, and the own masks of those that did not, the remaining
clients help to take off, by shares of the seeds. There is no shared secret key.

What it does not give: secrecy once as many of a client's neighbours as the threshold collude with
the coordinator; secrecy of the sum; a check of what was summed; an answer if clients do not stay
until the sum is unmasked.
"""

from fedrec.protection.masks.collector import Collector, Step
from fedrec.protection.masks.keys import KeyAdvertisement, KeyList
from fedrec.protection.masks.messages import GivenShares, Inbox, ShareBundle
from fedrec.protection.masks.participant import Participant
from fedrec.protection.masks.terms import (
    MAX_CLIENTS,
    GraphParameters,
    MaskTerms,
    parameters_for,
)
from fedrec.protection.masks.words import MaskWords, plan_masks
from fedrec.protection.settings import Tolerance

__all__ = [
    "MAX_CLIENTS",
    "Collector",
    "GivenShares",
    "GraphParameters",
    "Inbox",
    "KeyAdvertisement",
    "KeyList",
    "MaskTerms",
    "MaskWords",
    "Participant",
    "ShareBundle",
    "Step",
    "Tolerance",
    "parameters_for",
    "plan_masks",
]
