"""Slurm cluster: the login node in place of nodes, how many of those, and what the job asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runner.config.schema.slurm import SlurmConfig
from runner.config.validation import SpecInputs, Validator
from runner.core.model.slurm import LOGIN, SlurmSpec
from runner.core.model.spec import Node, Spec
from runner.core.planning.batch_script import GPUS_OF_GRES

EARLY_S = 60
"""How early Slurm may send the signal before a time limit, by sbatch(1)."""

OWN_OPTIONS = {
    **dict.fromkeys(("--array", "-a"), "one job per run: -m makes a run of each value"),
    **dict.fromkeys(("--nodes", "-N"), "set cluster.nodes or task.nnodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "set cluster.nproc_per_node"),
    **dict.fromkeys(("--output", "-o", "--error", "-e", "--open-mode"), "leave it out"),
    **dict.fromkeys(("--job-name", "-J", "--comment", "--chdir", "-D", "--export"), "leave it out"),
    **dict.fromkeys(("--wrap", "--wait", "-W", "--parsable", "--hold", "-H"), "leave it out"),
    **dict.fromkeys(("--signal",), "set slurm.signal_before"),
    **dict.fromkeys(("--requeue", "--no-requeue"), "set slurm.requeue"),
}
"""Options of sbatch that a batch script has anyway, or that no run can have, and what to do."""

UNUSED_KEYS = {
    "only": "set cluster.slurm.nodelist to nodes that the job must get",
    "master": "the first node of the job has rank 0",
}
"""Keys of a cluster that a job has no use for, with what to do in their place."""


def read_slurm(
    validator: Validator, inputs: SpecInputs, cluster: Mapping[str, Any]
) -> tuple[Node, SlurmSpec, int | None]:
    """Return the login node, what a job asks for, and the fewest nodes; None for all of them."""
    values = inputs.values["cluster"]
    asked = validator.section("cluster.slurm", values["slurm"], SlurmConfig)
    min_nodes, nnodes, spares = _read_nodes(validator, inputs, cluster["nodes"])
    for key, hint in UNUSED_KEYS.items():
        if cluster[key]:
            validator.add(f"cluster.{key}", "Slurm chooses the nodes", hint)
    if inputs.values["task"]["nodes"]:
        validator.add("task.nodes", "Slurm chooses the nodes", UNUSED_KEYS["only"])
    if cluster["gpus_per_node"] and re.search(GPUS_OF_GRES, asked["gres"]):
        message = "set one of gpus_per_node and gres: both ask for GPUs"
        validator.add("cluster.slurm.gres", message)
    _check_signal(validator, asked)
    for word in asked["extra"]:
        name = word.partition("=")[0]
        if name in OWN_OPTIONS:
            message = f"{name} is the runner's own part"
            validator.add("cluster.slurm.extra", message, OWN_OPTIONS[name])
    asked["signal_before_s"] = asked.pop("signal_before") or 0
    exclude = ",".join(validator.text_list("cluster.exclude", cluster["exclude"]))
    spec = SlurmSpec(nnodes=nnodes, spares=spares, exclude=exclude, **asked)
    return _login_node(validator, inputs, cluster), spec, min_nodes


def check_slurm(validator: Validator, spec: Spec) -> None:
    """Report what cannot be where Slurm starts the supervisors, or only there."""
    if spec.slurm is None:
        if spec.task.entry == "srun":
            hint = "choose task.entry=torchrun or plain, or a cluster with scheduler: slurm"
            validator.add("task.entry", "srun is for clusters that Slurm schedules", hint)
        return
    if spec.slurm.spares and spec.min_nodes:
        message = "a range of nodes has no spares: what is there takes part"
        validator.add("task.nnodes", message, "set one number, or relaunch.max=0")


def _check_signal(validator: Validator, asked: Mapping[str, Any]) -> None:
    """Report a signal that would come at the start of a job, or a restart that nothing asks for."""
    lead_s, limit_s = asked["signal_before"], _seconds(asked["time"])
    if lead_s and limit_s and lead_s + EARLY_S >= limit_s:
        message = f"{lead_s} s, and the minute that Slurm may be early, are the whole time limit"
        validator.add("cluster.slurm.signal_before", message, "lower it, or raise slurm.time")


def _seconds(time: str) -> int:
    """Return a time limit in seconds, 0 for none: minutes, or [D-]H:MM:SS, as sbatch reads it."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":") if part.isdigit()]
    if not parts:
        return 0
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) < 3:  # noqa: PLR2004 (minutes, or minutes and seconds)
        minutes, seconds = (*parts, 0)[:2]
        return minutes * 60 + seconds
    hours, minutes, seconds = parts
    return (hours * 60 + minutes) * 60 + seconds


def _read_nodes(
    validator: Validator, inputs: SpecInputs, of_cluster: object
) -> tuple[int | None, int, int]:
    """Return the fewest and the most nodes of the job, and how many of these are spares.

    `task.nnodes` wins over `cluster.nodes`, of which the rest are spares if a relaunch may need
    them.
    """
    if isinstance(of_cluster, Mapping) and of_cluster:
        message = "with slurm this is how many nodes a job gets, not which"
        validator.add("cluster.nodes", message, "such as nodes: 4")
        return None, 1, 0
    of_task = inputs.values["task"]["nnodes"]
    min_nodes, nnodes = validator.nnodes(
        "cluster.nodes", 1 if of_cluster in (None, {}) else of_cluster
    )
    if of_task is None:
        return min_nodes, nnodes or 1, 0
    least, used = validator.nnodes("task.nnodes", of_task)
    has_spares = inputs.values["relaunch"]["max"] and nnodes and used and nnodes > used
    spares = (nnodes or 0) - (used or 0) if has_spares else 0
    return least, (used or 1) + spares, spares


def _login_node(validator: Validator, inputs: SpecInputs, cluster: Mapping[str, Any]) -> Node:
    host, is_local = cluster["login_node"], cluster["transport"] == "local"
    if is_local and host:
        message = "with transport local this machine is the login node"
        validator.add("cluster.login_node", message, "leave it out, or set cluster.transport=ssh")
    elif not is_local and not host:
        message = f"cluster {inputs.cluster} names no machine that has sbatch"
        hint = "such as login_node: hpc.example; or cluster.transport=local on the login node"
        validator.add("cluster.login_node", message, hint)
    return Node(
        name=LOGIN,
        host=host or LOGIN,
        transport=cluster["transport"],
        gpu_count=cluster["gpus_per_node"],
        nproc=cluster["nproc_per_node"],
    )
