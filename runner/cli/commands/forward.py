"""The verb `forward`: ports of a node on this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.cli.selection import Selection
from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem
from runner.core.model.facts import MAX_PORT
from runner.core.shell import this_program

if TYPE_CHECKING:
    from runner.control.port_forward import PortPair


@verb(
    "forward",
    subject="port",
    port="a port of the node, or LOCAL:REMOTE for another one here (0: any free one); repeatable",
    node="the node; by default the run's first, or the cluster's master",
)
def forward(selection: Selection, port: Sequence[str] = (), run: str = "", node: str = "") -> int:
    """Forward ports of a node to this machine, such as TensorBoard's, until Ctrl-C.

    Over the ssh connection, to what listens at 127.0.0.1 there. Example: forward --run ID 6006
    """
    from runner.ui.output import show
    from runner.workflows import forward as workflow

    ports = [_parse_pair(text) for text in port]
    if not ports:
        hint = f"such as: {this_program()} forward --run ID 6006"
        raise ConfigError([Problem("forward", "there is no port to forward", hint)])
    _refuse_twice([pair.local for pair in ports if pair.local])
    is_of_run = bool(run) or not selection.names_cluster
    composed = selection.contact_for_run(run) if is_of_run else selection.contact()
    with workflow.open_listeners(ports) as listeners:
        if is_of_run:
            destination = workflow.node_of_run(composed, node, ports)
        else:
            destination = workflow.node_of_cluster(composed, node)
        return workflow.forward(destination, listeners, lambda line: show(line, flush=True))


def _refuse_twice(local_ports: Sequence[int]) -> None:
    for number in local_ports:
        if local_ports.count(number) > 1:
            message = f"port {number} of this machine is given twice"
            raise ConfigError([Problem("forward", message, "LOCAL:REMOTE takes another one here")])


def _parse_pair(text: str) -> PortPair:
    """Return the ports that a word means, or raise ConfigError."""
    from runner.control.port_forward import PortPair

    match = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})", text)
    remote = int(match[2]) if match else 0
    local = int(match[1] or remote) if match else 0
    if not 1 <= remote <= MAX_PORT or local > MAX_PORT:
        message = f"must be a port from 1 to {MAX_PORT}, or LOCAL:REMOTE, not {text!r}"
        hint = "such as 6006, or 16006:6006; a run is --run ID"
        raise ConfigError([Problem("forward", message, hint)])
    return PortPair(local, remote)
