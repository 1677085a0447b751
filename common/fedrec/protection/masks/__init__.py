"""Secure aggregation with masks: the coordinator learns a round's sum and no single vector.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning (CCS 2017), on
the sparse graph of Bell et al., Secure single-server aggregation with (poly)logarithmic overhead
(CCS 2020), called SecAgg+. Every vector carries one mask of its client's own. It also carries one
mask in common with each partner, which the partner subtracts. Common masks cancel in the sum. The
remaining clients help to remove the masks left by clients that dropped out, and the own masks of
those that didn't, with shares of the seeds. There is no shared secret key.

This scheme doesn't keep a client's vector secret once a threshold of its neighbours collude with
the coordinator. It doesn't hide the sum, and doesn't check the summed values. It gives no result if
clients don't stay until the sum is unmasked.
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
