"""A training that also keeps the gradients of its steps: gradients.py FOLDER SCRIPT ARGS..."""

import os
import runpy
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

steps: list[list[torch.Tensor]] = []


def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Keep those of one step, as the optimizer is about to use them."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    steps.append([parameter.grad.clone() for parameter in parameters])


register_optimizer_step_pre_hook(keep)
folder, sys.argv = sys.argv[1], sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    torch.save(steps, f"{folder}/rank_{os.environ.get('RANK', '0')}.pt")
