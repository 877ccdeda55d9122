"""Inspection of a run on the lab's hosts: our processes there, and the events on record."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ClusterShell.NodeSet import NodeSet

if TYPE_CHECKING:
    from tests.lab.lab import Lab
    from tests.lab.lab.processes import Process


def proven_nodes(report: str) -> int:
    """Return on how many nodes, by the report of a run, nothing of it is left."""
    lines = re.findall(r"^ *(\S+) .*; 0 processes left", report, re.MULTILINE)
    return sum(len(NodeSet(names)) for names in lines)


def own_processes(lab: Lab, node: str) -> list[Process]:
    """Return our own processes on a node: agents, guardians, supervisors."""
    start = f"{sys.executable} -I -S -X utf8 -c"
    return [each for each in lab[node].processes() if each.cmdline.startswith(start)]


def guardian_and_supervisor(lab: Lab, node: str) -> tuple[Process, Process]:
    """Return the guardian and the supervisor of a node's only run."""
    there = own_processes(lab, node)  # the agent of a finished launch is init's child for a moment
    pairs = [(g, s) for g in there if g.ppid == 1 for s in there if s.ppid == g.pid]
    (pair,) = pairs
    return pair


def agent_of(lab: Lab, node: str) -> Process:
    """Return the agent of a node's only run."""
    others = {each.pid for each in guardian_and_supervisor(lab, node)}
    (agent,) = (each for each in own_processes(lab, node) if each.pid not in others)
    return agent


def events_by_node(
    lab: Lab, run_id: str, nodes: Iterable[str] = ()
) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Yield the names of some hosts, or of all, and their events of a run."""
    for name in nodes or lab.hosts:
        text = ""
        with contextlib.suppress(Exception):
            text = lab[name].sh(f"cat ~/.runner/runs/{run_id}/{name}/events.jsonl")
        yield name, [json.loads(line) for line in text.splitlines()]


def next_commands(text: str) -> list[str]:
    """Return the commands that are proposed, on a line of their own or in backticks."""
    pattern = r"`python -m runner ([^`]+)`|(?:^ *|→ |: )python -m runner(?: (.*?))?(?:  +#.*)?$"
    found = re.findall(pattern, text, re.MULTILINE)
    return [quoted or alone for quoted, alone in found if not re.search("[A-Z]{4}", quoted + alone)]
