"""The verb `check`: the preflight checks of a cluster."""

from __future__ import annotations

import ast
import os
import re
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from runner.checks.base import CheckContext, NetworkProbe, evaluate_checks
from runner.control.code.source import code_of, open_code_source
from runner.control.rpc.wait import Broadcast
from runner.control.run.attempts import without_pulls
from runner.control.run.preparation import Preparation
from runner.core.errors import Finding, NotReady
from runner.core.launch_request import LaunchRequest
from runner.core.planning.endpoints import peer_endpoints
from runner.core.planning.readiness import facts_request
from runner.core.spec import Node, Spec, are_local
from runner.core.wire.codec import encode
from runner.core.wire.facts import Facts, FactsRequest, ProbeResult, Target
from runner.core.wire.plan import CodeRef
from runner.ui import problems
from runner.ui.layout import terminal_width
from runner.verbs.shared.selection import Selection, open_pool
from runner.verbs.shared.verb import json_option, show_json, verb

LISTEN_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 30.0
"""How long to wait for a host that answers pings but not the probe."""


@verb(
    "check",
    subject="cluster",
    keys=None,
    examples={"check lab3": "the machines", "check lab3 task=fit": "with what a task needs"},
)
@json_option
def check(selection: Selection, json_: bool) -> int:
    """Look for what is wrong with a cluster, before a run does.

    Without a task the cluster alone is judged. Errors are what makes a launch refuse or hang.
    Nothing is started; `runner task=collectives` measures the network.
    """
    composed = without_pulls(selection.compose())
    found = _run_preflight(replace(composed, spec=replace(composed.spec, run_id="check")))
    if json_:
        data = [
            {
                "check": check,
                "level": finding.level.value,
                "node": finding.node,
                "message": finding.message,
                "hint": finding.hint,
            }
            for check, findings in found.items()
            for finding in findings
        ]
        show_json(data)
    else:
        colour = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        task = composed.spec.task.name if composed.names_program else ""
        name = composed.spec.cluster.name
        # Not by `show`, which drops colours; each text of a host in it is printable.
        print(problems.render_findings(found, name, task, terminal_width(), colour=colour))
    return NotReady.exit_code if problems.find_errors(found) else 0


def _imports(spec: Spec, paths: Collection[str]) -> Iterator[str]:
    """Yield what the program imports first, and neither Python nor the project brings."""
    name = spec.task.target
    if spec.task.kind == "module":
        name = f"{name.replace('.', '/')}.py"
    try:
        tree = ast.parse(Path(name).read_bytes())
    except (OSError, SyntaxError, ValueError):  # it is elsewhere, or no program of Python
        return
    own = {part.removesuffix(".py") for path in paths for part in PurePosixPath(path).parts}
    found: list[str] = []
    for line in tree.body:
        if isinstance(line, ast.Import):
            found += [alias.name for alias in line.names]
        elif isinstance(line, ast.ImportFrom) and not line.level:
            found.append(str(line.module))
    tops = dict.fromkeys(name.partition(".")[0] for name in found)
    yield from (top for top in tops if top not in sys.stdlib_module_names and top not in own)


def _paths(spec: Spec) -> Iterator[str]:
    """Yield the absolute paths among the arguments of the program."""
    for word in spec.task.words:
        _, _, value = word.rpartition("=")
        if re.fullmatch(r"(/|~/)[\w./@+-]+", value):
            yield value


def _run_preflight(composed: LaunchRequest) -> dict[str, list[Finding]]:
    """Return the findings of every check that is not left out; nothing is started or changed.

    Raises:
        ConfigError, NotReady: The code here cannot be pushed.
    """
    spec = composed.spec
    with open_pool(composed) as pool:
        source = open_code_source(composed)
        preparation = Preparation(spec, source)
        code = code_of(composed, source) if spec.pushes_code else CodeRef()
        release = source.release()
        pushed = [entry.path for entry in release.manifest.entries] if release else []
        modules = tuple(_imports(spec, pushed)) if release else ()

        def request(node: Node) -> FactsRequest:
            asked = facts_request(spec, node, code)
            prepare = preparation.request(node)
            return replace(
                asked,
                run_id="",
                gpu_health=True,
                prepare=prepare,
                modules=modules,
                paths=tuple(_paths(spec)),
            )

        facts, unreachable = pool.collect_available_facts(request)
        offsets = {name: session.clock_offset for name, session in pool.sessions.items()}
        context = CheckContext(spec, facts, unreachable, offsets)
        if context.ready and "pairs" not in spec.skip_checks:
            pool.console.phase("trying the network")
            nodes = tuple(node for node, _ in context.ready)
            probe = probe_network(spec, pool.broadcast, nodes, facts)
            context = replace(context, network_probe=probe)
        return evaluate_checks(context, spec.skip_checks)


def probe_network(
    spec: Spec,
    broadcast: Callable[[Collection[str]], Broadcast],
    nodes: tuple[Node, ...],
    facts: Mapping[str, Facts],
) -> NetworkProbe | None:
    """Return what the ready nodes found; None if nothing is to be probed."""
    on_one = len(nodes) == 1 or are_local(nodes)
    endpoints = {} if on_one else peer_endpoints(spec, nodes, facts)
    if not endpoints:
        return None
    addrs = {name: entry.address for name, entry in endpoints.items() if entry.address}
    token = secrets.token_hex(16)
    ports = spec.cluster.master_port  # a firewall may let these alone through
    request = {
        "token": token,
        "addresses": addrs,
        "first_port": ports.first,
        "last_port": ports.last,
    }
    listening, problems = broadcast(addrs).collect("listen", request, "listening", LISTEN_TIMEOUT_S)
    missing_reasons = {name: problem.message for name, problem in problems.items()}
    targets: list[Target] = []
    for name, addr in addrs.items():
        reply = listening.get(name)
        if reply and reply["port"]:
            targets.append(Target(name, addr, reply["port"]))
        if reply and reply["error"]:
            missing_reasons[name] = f"cannot listen at {addr}: {reply['error']}"
    reachable = endpoints.keys() - missing_reasons.keys()
    request = {"token": token, "targets": encode(tuple(targets))}
    probed, problems = broadcast(reachable).collect("probe", request, "probed", PROBE_TIMEOUT_S)
    missing_reasons.update({name: problem.message for name, problem in problems.items()})
    by_node = {}
    for node in nodes:
        if node.name in probed:
            told: tuple[ProbeResult, ...] = probed[node.name]["results"]
            by_node[node.name] = tuple(each for each in told if each.target in targets)
    return NetworkProbe(endpoints, tuple(targets), by_node, missing_reasons)
