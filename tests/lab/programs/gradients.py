"""A training that also keeps the gradients of its steps: gradients.py FOLDER SCRIPT ARGS...

And how often DDP averaged gradients over the ranks before each step.
"""

import os
import runpy
import sys
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import parallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

steps: list[list[torch.Tensor]] = []
averaged = [0]


class Counting(parallel.DistributedDataParallel):
    """DDP as it is, with a hook that counts; the model is small enough for one bucket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_comm_hook(None, self.count)

    def count(self, _: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average as DDP does by itself."""
        averaged[-1] += bucket.is_last()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: all ranks


def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Keep those of one step, as the optimizer is about to use them."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    steps.append([parameter.grad.clone() for parameter in parameters])
    averaged.append(0)


register_optimizer_step_pre_hook(keep)
parallel.DistributedDataParallel = Counting  # type: ignore[misc]
folder, sys.argv = sys.argv[1], sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    torch.save((steps, averaged[:-1]), f"{folder}/rank_{os.environ.get('RANK', '0')}.pt")
