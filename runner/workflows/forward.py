"""Forward of ports: the node of a run or a cluster that has them, and the forward to its end."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runner.control.port_forward import ForwardTarget, PortForward, PortPair, listen
from runner.control.rpc.session import Connector
from runner.core.dataclass import dataclass
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, NotReady, Problem
from runner.core.model.plan import Plan
from runner.core.model.spec import LaunchRequest, Node, Spec
from runner.core.text import join_some
from runner.ui.output import note
from runner.workflows.host_pool import handling_signals
from runner.workflows.runs.discovery import open_run_finder


@dataclass(frozen=True)
class Destination:
    """A node that has the ports, and how it is reached."""

    spec: Spec
    target: ForwardTarget
    debug_port: int = 0  # where a debugger of a rank listens there, 0 for none


def node_of_cluster(composed: LaunchRequest, node: str) -> Destination:
    """Return a node of a cluster, for "" its master; raise ConfigError."""
    spec = composed.spec
    chosen = _choose(spec.nodes, node, spec.cluster, ConfigError)
    return Destination(spec, ForwardTarget(chosen.name, chosen))


def node_of_run(composed: LaunchRequest, node: str, ports: Sequence[PortPair]) -> Destination:
    """Return a node of a run, for "" that of its debugged rank for its port, else the first."""
    with open_run_finder(composed, "forward", plain=True) as finder:
        plan = finder.load_record(finder.find(composed.spec.run_id)).plan
        spec = finder.retarget_to_run(plan)
    chosen = _choose(spec.nodes, node or _default_node(plan, ports), plan.run_id, NotReady)
    target = ForwardTarget(chosen.name, chosen)
    if chosen.in_job:  # from its login node, which is what our connection reaches
        target = ForwardTarget(chosen.name, replace(chosen, in_job=False), chosen.name)
    return Destination(spec, target, plan.debug.port if plan.debug else 0)


def _default_node(plan: Plan, ports: Sequence[PortPair]) -> str:
    is_debugged = plan.debug and any(pair.remote == plan.debug.port for pair in ports)
    if plan.debug and is_debugged and not plan.torch_assigns_ranks:
        return plan.node_of_rank[plan.debug.rank]
    return plan.nodes[0].node


def _choose(
    nodes: Sequence[Node], name: str, whose: str, error: type[ConfigError | NotReady]
) -> Node:
    if not name:
        return nodes[0]
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        names = join_some([node.name for node in nodes])
        raise error([Problem("--node", f"{whose} has no node {name!r}; it has {names}")])
    return found


@contextlib.contextmanager
def open_listeners(ports: Sequence[PortPair]) -> Iterator[list[tuple[socket.socket, int]]]:
    """Listen on all of these ports here; raise NotReady if one of them is taken."""
    with contextlib.ExitStack() as stack:
        yield [(stack.enter_context(listen(pair.local)), pair.remote) for pair in ports]


def forward(
    destination: Destination,
    listeners: Sequence[tuple[socket.socket, int]],
    show: Callable[[str], None],
) -> int:
    """Forward until a signal comes; return the exit code that stands for it."""
    connector = Connector(destination.spec, note)
    target = destination.target
    transport = connector.transport(target.contact.transport)
    port_forward = PortForward(transport, target, listeners, note)
    received: list[int] = []

    def stop(signum: int) -> None:
        received.append(signum)
        port_forward.stop()

    with handling_signals(stop), contextlib.closing(connector):
        transport.connect(target.contact)
        for line in _announcement(destination, listeners):
            show(line)
        port_forward.run()
    return SIGNAL_EXIT_BASE + received[0] if received else 0


def _announcement(
    destination: Destination, listeners: Sequence[tuple[socket.socket, int]]
) -> Iterator[str]:
    """Yield what is forwarded where, and at last how that ends."""
    for number, (listener, port) in enumerate(listeners, start=1):
        address = "{}:{}".format(*listener.getsockname())
        what = address if port == destination.debug_port else f"http://{address}"
        end = "; Ctrl-C ends it" if number == len(listeners) else ""
        yield f"forwarding {what} to {destination.target.name}:{port}{end}"
