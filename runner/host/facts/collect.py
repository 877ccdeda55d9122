"""Facts collection: everything the plan depends on about this host, within a bounded time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List

from runner.core.model.facts import Facts, FactsRequest
from runner.host.facts import folders, interfaces, ports, setup
from runner.host.gpu import query
from runner.host.process import bounded_child, procfs


@dataclass
class FactsResult:
    """The facts, and what the agent keeps for a start.

    Attributes:
        facts: What the controller gets.
        environ: The environment to run the task in: ours, as the setup lines left it.
        reserved: The bound sockets that reserve ports; the caller closes them.
    """

    facts: Facts
    environ: Dict[str, str]
    reserved: ports.ReservedPorts = ports.NO_PORTS


def collect(request: FactsRequest) -> FactsResult:
    """Collect what `request` asks for.

    Whatever may hang runs in children with deadlines, side by side. Nothing is written to a disk,
    torch is not imported, and what cannot be found out is left empty.
    """
    children: List[bounded_child.BoundedChild] = []
    try:
        return _collect(request, children)
    finally:
        for child in children:
            child.kill()


def _collect(request: FactsRequest, children: List[bounded_child.BoundedChild]) -> FactsResult:
    began = time.monotonic()
    facts = _static_facts(request)
    environ = dict(os.environ)
    seconds: Dict[str, float] = {}
    gpu_children = []
    if request.gpus or not request.skip_launch_facts:
        gpu_children = query.start(request.tool_timeout_s, health=request.thorough)
    children += gpu_children
    if request.setup:
        setup_child = setup.start(request.setup, environ, facts.project, request.setup_timeout_s)
        children.append(setup_child)
        bounded_child.wait_all([setup_child], also_read=gpu_children)
        seconds["setup"] = setup_child.seconds
        setup_result, environ = setup.result(setup_child, request.setup, environ)
        facts = replace(facts, setup=setup_result)
        if setup_result.exit_code != 0:
            return FactsResult(replace(facts, part_seconds=seconds), environ)
    survey_child = folders.start_survey(request, facts.home)
    children.append(survey_child)
    fields: Dict[str, Any] = {}
    reserved = ports.NO_PORTS
    if not request.skip_launch_facts:
        from runner.host.facts import launch_facts  # noqa: PLC0415 (verbs do without)

        fields, reserved = launch_facts.collect(request, facts, environ, children, seconds)
    bounded_child.wait_all(children)
    fields.update(folders.survey_result(survey_child, request), **query.result(gpu_children))
    if not request.skip_launch_facts:
        seconds.update(folders=survey_child.seconds, total=round(time.monotonic() - began, 4))
        seconds.update(("gpus", gpu_child.seconds) for gpu_child in gpu_children)
    return FactsResult(replace(facts, **fields, part_seconds=seconds), environ, reserved)


def _static_facts(request: FactsRequest) -> Facts:
    """Return what is known without waiting for anything."""
    home = os.path.expanduser("~")
    home = home if os.path.isabs(home) else "/"
    return Facts(
        node=request.node,
        hostname=os.uname().nodename,
        user=procfs.login_name(),
        home=home,
        ssh_address=interfaces.ssh_server_address(os.environ),
        workdir=folders.absolute(request.workdir, home),
        project=folders.absolute(request.project, home) if request.project else "",
        machine=os.uname().machine,
    )
