"""Spreads tasks over a Ray cluster that was started around it."""

from __future__ import annotations

import os
import time

import ray

ray.init(address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
while len(ray.nodes()) < int(os.environ["WORLD_SIZE"]):
    time.sleep(1)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def node() -> str:
    time.sleep(1)
    return ray.get_runtime_context().get_node_id()


nodes = ray.get([node.remote() for _ in range(8)])
print(f"{len(nodes)} tasks ran on {len({*nodes})} nodes")
