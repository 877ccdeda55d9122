"""Debugged rank, as planned: by its variable the shim (`host/ranks/shim.py`) starts debugpy."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from runner.core import shell
from runner.core.errors import Problem
from runner.core.model.plan import DebugRank
from runner.core.spec import Node, Spec, Ssh

DEBUG_VARIABLE = "RUNNER_DEBUG_RANK"
"""RANK:PORT, for the shims; a rank's own environment lacks it."""

GUIDE = "docs/debugging.md"


def debug_env(debug: Optional[DebugRank]) -> Dict[str, str]:
    """Return what tells the shims of a run which rank is debugged."""
    return {DEBUG_VARIABLE: f"{debug.rank}:{debug.port}"} if debug else {}


def no_such_rank(debug: DebugRank, world_size: int) -> Problem:
    """Return the problem of a rank that the run does not have."""
    legal = f"0 to {world_size - 1}" if world_size > 1 else "0 alone"
    return Problem("debug.rank", f"there is no rank {debug.rank}: this run has {legal}")


def ssh_forward(ssh: Ssh, node: Optional[Node], port: int) -> str:
    """Return the line that brings a port of a node's loopback here; None is any node, as HOST."""
    usual = Ssh()
    words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}"]
    if ssh.config != usual.config:
        words += ["-F", shell.path(ssh.config)]
    if ssh.key:
        words += ["-i", shell.path(ssh.key)]
    if ssh.known_hosts != usual.known_hosts:
        words += ["-o", shell.quote(f"UserKnownHostsFile={ssh.known_hosts}")]
    if ssh.jump:
        words += ["-J", shell.quote(",".join(ssh.jump))]
    if user := (node and node.user) or ssh.user:
        words += ["-l", shell.quote(user)]
    if sshd_port := (node and node.port) or ssh.port:
        words += ["-p", str(sshd_port)]
    words.append(shell.quote(node.host) if node else "HOST")
    return " ".join(words)


def debug_note(spec: Spec, debug: DebugRank, ranks: Mapping[str, Tuple[int, ...]]) -> str:
    """Return that a rank waits, and how a debugger attaches to it."""
    is_only = len(spec.nodes) == 1
    nodes = [node for node in spec.nodes if is_only or debug.rank in ranks[node.name]]
    where = f" on {nodes[0].name}" if nodes and not is_only else ""
    if nodes and nodes[0].transport == "local":
        how = f"have your editor attach to 127.0.0.1:{debug.port}"
    else:
        line = ssh_forward(spec.cluster.ssh, nodes[0] if nodes else None, debug.port)
        how = f"`{line}` in another terminal, and have your editor attach to 127.0.0.1:{debug.port}"
    waits = f"rank {debug.rank}{where} waits for a debugger: {how} ({GUIDE})"
    return f"{waits}; the hang watchdog is off"
