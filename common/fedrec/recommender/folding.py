"""Folding in: a vector for somebody who was not there when the model was trained.

The items stay as they are; only p is trained, with the algorithm's own loss. FedMF's sampled
negatives are replaced by their expectation over everything that is not in the history, so that
the result is a function of the history alone:

    L(p) = 1/(1+k) mean over positives of softplus(-<p, q>)
         + k/(1+k) mean over all others of softplus(<p, q>) + gamma |p|^2,

with k negatives per positive and the plan's gamma, minimised by n_steps of Newton's method from
p = 0. L is convex, and strictly so for gamma > 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["fold_in_vector"]
