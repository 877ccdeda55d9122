"""Entry of a task, and the settings that each entry allows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.schema import TorchrunConfig
from runner.config.validation import Validator
from runner.core.model.spec import Node, Rendezvous
from runner.core.planning.launch_command import LOCAL_RANK_MACRO

ENTRIES = ("torchrun", "launch", "plain")
REFUSED_ELSEWHERE = "max_restarts"
"""The option of torchrun that any static rendezvous refuses."""


def local_rank_words(validator: Validator, value: object, entry: str) -> list[str]:
    """Return the argument that passes the local rank to an old script, if it needs one."""
    where = "task.local_rank_arg"
    flag = validator.optional_line(where, value)
    if not flag:
        return []
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", flag):
        validator.add(where, f"{flag!r} is no flag", "such as --local_rank, or --local-rank")
    if entry == "plain":
        message = "entry plain starts one process per node, so that there is no local rank"
        validator.add(where, message, "choose task.entry=torchrun, or leave it out")
    if entry == "launch":
        message = "torch.distributed.launch passes --local-rank by itself"
        validator.add(
            where, message, f"choose task.entry=torchrun, which passes {flag}, or leave it out"
        )
    return [f"{flag}={LOCAL_RANK_MACRO}"]


def check_plain(
    validator: Validator, values: Mapping[str, Any], nodes: Sequence[Node], rendezvous: Rendezvous
) -> None:
    """Report the settings that a task without torchrun cannot have."""
    for name in _multi_rank_nodes(values, nodes):
        message = "entry plain starts one process per node, which may start its own workers"
        hint = "set it to 1 or auto, or task.entry=torchrun"
        validator.add(f"cluster.nodes.{name}.nproc_per_node", message, hint)
    if rendezvous.backend != "static":
        message = f"{rendezvous.backend} is torchrun's, and entry plain starts none"
        validator.add(
            "rendezvous.backend", message, "choose rendezvous=static, or task.entry=torchrun"
        )
    for option in dataclasses.fields(TorchrunConfig):
        default = getattr(TorchrunConfig(), option.name)
        if option.name != REFUSED_ELSEWHERE and values["torchrun"][option.name] not in (
            default,
            None,
        ):
            message = "entry plain starts no torchrun"
            validator.add(
                f"torchrun.{option.name}", message, "leave it out, or set task.entry=torchrun"
            )


def _multi_rank_nodes(values: Mapping[str, Any], nodes: Sequence[Node]) -> list[str]:
    """Return the nodes that have a number of ranks above 1 of their own."""
    cluster_default = str(values["cluster"]["nproc_per_node"])
    multi_rank = [node for node in nodes if node.nproc not in (None, 1)]
    return [node.name for node in multi_rank if str(node.nproc) != cluster_default]
