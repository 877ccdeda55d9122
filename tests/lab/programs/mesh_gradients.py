"""Gradients of one batch through the shipped tensor_parallel, put together: FILE ARGS..."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from runner.tasks import tensor_parallel as task

path = sys.argv.pop(1)
args = task.parse_args()
dist.init_process_group(args.backend)
model: Any = task.build_model(args.seed)
mesh = task.parallelize(model, args)
mine = task.load_batch(1, args)[mesh["data"].get_local_rank() :: args.data_parallel]
cross_entropy(model(mine[:, :-1]), mine[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
local = {name: parameter.to_local().numel() for name, parameter in model.named_parameters()}
gradients = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
if task.RANK == 0:
    torch.save({"local": local, "gradients": gradients}, path)
task.train(args)
dist.destroy_process_group()
time.sleep(0.2)
