"""Outputs and gradients of one batch through the shipped pipeline, by each schedule: FILE ARGS..."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from runner.tasks import pipeline as task

path = sys.argv.pop(1)
args = task.parse_args()
dist.init_process_group(args.backend)
results = {}
for args.schedule in task.SCHEDULES:
    stage = task.Stage(args)
    outputs, loss = stage.step(*task.load_batch(1, args))
    mine: dict[str, Any] = {
        "gradients": [parameter.grad for parameter in stage.layers.parameters()]
    }
    if task.RANK == task.WORLD_SIZE - 1:
        mine["outputs"] = outputs.detach()
    every: list[Any] = [None] * task.WORLD_SIZE
    dist.all_gather_object(every, mine)
    gradients = [one for stage in every for one in stage["gradients"]]
    results[args.schedule] = {**every[-1], "loss": loss, "gradients": gradients}
if task.RANK == 0:
    torch.save(results, path)
task.train(args)
dist.destroy_process_group()
time.sleep(0.2)
