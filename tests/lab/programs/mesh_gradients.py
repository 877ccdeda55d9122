"""A shipped task that shards by AdamW; the gradients of its first step, put together: TASK FILE."""

import importlib
import sys
from typing import Any

import torch

task = importlib.import_module(f"examples.{sys.argv.pop(1)}")
path = sys.argv.pop(1)


class Recorder(torch.optim.AdamW):
    """Keeps what the training itself has computed."""

    recorded = False

    def step(self, closure: Any = None) -> Any:
        """Save the gradients and the sizes of this rank's parts, in the order of the parameters."""
        if not Recorder.recorded:
            Recorder.recorded = True
            parameters: list[Any] = self.param_groups[0]["params"]
            local = [parameter.to_local().numel() for parameter in parameters]
            gradients = [parameter.grad.full_tensor() for parameter in parameters]
            if task.RANK == 0:
                torch.save({"local": local, "gradients": gradients}, path)
        return super().step(closure)


torch.optim.AdamW = Recorder  # type: ignore[misc]
task.main()
