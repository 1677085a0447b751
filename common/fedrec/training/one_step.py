"""One training step of a few made-up users, to see that a device trains at all."""

from __future__ import annotations

import torch

from fedrec.data.splits import leave_one_out
from fedrec.data.synthetic import generate
from fedrec.plan.schema import Plan
from fedrec.training.learner import Learner


class OneStep:
    """Eight users with one minibatch each, under the default plan, by the trainer.

    Args:
        device: as `client.device` names it.

    Attributes:
        device_name: the device as torch knows it.
    """

    def __init__(self, device: str) -> None:
        data = generate(n_users=8, n_items=40, n_clusters=2, interactions_per_user=8)
        plan = Plan.model_validate(
            {
                "federation": {"minimum_item_users": 1},
                "evaluation": {"every_rounds": 1_000_000},
                "training": {"accelerated": False},
            }
        )
        self._users = leave_one_out(data.interactions, data.catalogue)
        self._learner = Learner(plan, len(data.catalogue), device=device)
        self.device_name = str(self._learner.device)
        if self._learner.device.type == "cuda":
            self.device_name += f" ({torch.cuda.get_device_name(self._learner.device)})"

    def train(self) -> None:
        """Train, and add everything up; the sums are on the processor afterwards."""
        learner = self._learner
        shared, private = learner.initial_shared(), learner.initial_private(self._users)
        learner.contribute("train", 1, shared, self._users, private)
