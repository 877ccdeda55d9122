"""Outputs and gradients of one batch through the shipped rpc_pipeline: FILE ARGS..."""

import sys
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.nn.functional import cross_entropy

from examples import rpc_pipeline as task


def gradients(stage: Any, context: int) -> list[torch.Tensor]:
    """Of a worker's parameters, in order."""
    found = dist_autograd.get_gradients(context)  # type: ignore[attr-defined]
    return [found[parameter] for parameter in stage.local_value().layers.parameters()]


path = sys.argv.pop(1)
args = task.parse_args()
task.join_rpc(args)
if task.RANK == 0:
    model = task.Pipeline(args)
    samples, labels = task.load_batch(1, args)
    with dist_autograd.context() as context:
        outputs = model(samples)
        dist_autograd.backward(context, [cross_entropy(outputs, labels)])  # type: ignore[attr-defined]
        found = []
        for stage in model.stages:
            found += rpc.rpc_sync(stage.owner(), gradients, (stage, context))
    torch.save({"outputs": outputs.detach(), "gradients": found}, path)
    task.train(args)
rpc.shutdown()
