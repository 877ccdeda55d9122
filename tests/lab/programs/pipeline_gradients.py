"""Outputs and gradients of one batch through the shipped pipeline, by each schedule: FILE ARGS..."""

import argparse
import sys
from typing import Any

import torch
import torch.distributed as dist

from examples import pipeline as task

path = sys.argv.pop(1)
train = task.train


def compare(args: argparse.Namespace) -> None:
    """Take the place of the training, which follows."""
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
    train(args)


task.train = compare
task.main()
