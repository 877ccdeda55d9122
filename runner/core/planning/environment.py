"""Environment of a node's ranks, as it overrides the host's own."""

from __future__ import annotations

from typing import Dict, Mapping, Tuple

from runner.core.model.facts import Facts
from runner.core.model.spec import Node, Spec

RECORDER_SIZE_VARS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_PATH_VARS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables of torch's flight recorder, by their new and their old name (ProcessGroupNCCL.cpp)."""


def flight_recorder_env(env: Mapping[str, str], path_prefix: str) -> Dict[str, str]:
    """Return the variables that put flight recorder dumps beside the logs, if it is switched on."""
    disabled = all(env.get(name, "0") == "0" for name in RECORDER_SIZE_VARS)
    if disabled or any(name in env for name in RECORDER_PATH_VARS):
        return {}
    return dict.fromkeys(RECORDER_PATH_VARS, path_prefix)


def rank_environment(
    spec: Spec,
    node: Node,
    facts: Facts,
    backend: str,
    interface: str,
    nproc: int,
    gpus: Tuple[int, ...],
    attempt: int = 0,
) -> Dict[str, str]:
    """Return our variables, overridden by the cluster's, the node's, and the task's.

    `RUNNER_ATTEMPT` is set from the second attempt on.
    """
    env = {
        "DIST_BACKEND": backend,
        "OMP_NUM_THREADS": str(max(1, int(facts.cores / nproc))),
        "RUNNER_RUN_ID": spec.run_id,
        "RUNNER_NODE": node.name,
    }
    if attempt:
        env["RUNNER_ATTEMPT"] = str(attempt)
    if interface:
        env["GLOO_SOCKET_IFNAME"] = interface
        env["TP_SOCKET_IFNAME"] = interface
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"
    env = {name: value for name, value in env.items() if name not in facts.preset_env}
    if node.gpu_ids or node.gpu_count is not None:
        if gpus:
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as in the facts; CUDA's: fastest first
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    return {**env, **spec.env_of(node)}
