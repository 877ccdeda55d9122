"""What starts a task's processes, and what of the configuration that leaves room for: checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.schema import Torchrun
from runner.config.validation import Checker
from runner.core.model.spec import Node, Rendezvous
from runner.core.planning.torchrun import LOCAL_RANK_MACRO

ENTRIES = ("torchrun", "launch", "plain")
RELAUNCHES = "max_restarts"
"""Not torchrun's alone: with a static rendezvous it is the number of relaunches."""


def local_rank_words(check: Checker, value: object, entry: str) -> list[str]:
    """Return the argument by which an old script takes its local rank, if it wants one."""
    where = "task.local_rank_arg"
    flag = check.optional_line(where, value)
    if not flag:
        return []
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", flag):
        check.wrong(where, f"{flag!r} is no flag", "such as --local_rank, or --local-rank")
    if entry == "plain":
        what = "entry plain starts one process per node, so that there is no local rank"
        check.wrong(where, what, "choose task.entry=torchrun, or leave it out")
    if entry == "launch":
        what = "torch.distributed.launch passes --local-rank by itself"
        check.wrong(
            where, what, f"choose task.entry=torchrun, which passes {flag}, or leave it out"
        )
    return [f"{flag}={LOCAL_RANK_MACRO}"]


def check_plain(
    check: Checker, values: Mapping[str, Any], nodes: Sequence[Node], rendezvous: Rendezvous
) -> None:
    """Report what makes no sense where one process per node is started without torchrun."""
    for name in _too_many(values, nodes):
        what = "entry plain starts one process per node, which may start its own workers"
        hint = "set it to 1 or auto, or task.entry=torchrun"
        check.wrong(f"cluster.nodes.{name}.nproc_per_node", what, hint)
    if rendezvous.backend != "static":
        what = f"{rendezvous.backend} is torchrun's, and entry plain starts none"
        check.wrong("rendezvous.backend", what, "choose rendezvous=static, or task.entry=torchrun")
    for option in dataclasses.fields(Torchrun):
        unset = getattr(Torchrun(), option.name)
        if option.name != RELAUNCHES and values["torchrun"][option.name] not in (unset, None):
            what = "entry plain starts no torchrun"
            check.wrong(f"torchrun.{option.name}", what, "leave it out, or set task.entry=torchrun")


def _too_many(values: Mapping[str, Any], nodes: Sequence[Node]) -> list[str]:
    """Return the nodes that are said to have more than one rank, but for the cluster's number."""
    everywhere = str(values["cluster"]["nproc_per_node"])
    ranked = [node for node in nodes if node.nproc not in (None, 1)]
    return [node.name for node in ranked if str(node.nproc) != everywhere]
