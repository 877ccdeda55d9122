"""Everything the plan depends on about this host, in one answer and within a bounded time."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Tuple

from runner.core.model.facts import Facts, FactsRequest, Interpreter
from runner.host.facts import (
    etcd,
    folders,
    interfaces,
    interpreter,
    logind,
    machine,
    ports,
    setup,
)
from runner.host.gpu import query
from runner.host.process import bounded_child, users


@dataclass
class FactsResult:
    """What the link keeps of what it learned.

    Attributes:
        facts: What the controller is told.
        environ: The environment the task shall run in: ours, as the setup lines left it.
        reserved: The sockets that reserve the master's ports, bound; whoever called closes them.
    """

    facts: Facts
    environ: Dict[str, str]
    reserved: ports.ReservedPorts = ports.NO_PORTS


def collect(request: FactsRequest) -> FactsResult:
    """Learn what `request` asks for.

    Whatever may hang is done in children with deadlines, side by side. Nothing is written to a
    disk, torch is not imported, and what cannot be known is left empty.
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
    if request.skip_launch_facts:
        bounded_child.wait_all(children)
        fields = {**folders.survey_result(survey_child, request), **query.result(gpu_children)}
        return FactsResult(replace(facts, **fields), environ)
    python = _expand_home(request.python, facts.home)
    path_env = {"PYTHONPATH": request.python_path} if request.python_path else {}
    python_child = interpreter.start(
        *(python, {**environ, **path_env}, facts.project, request.tool_timeout_s, request.packages)
    )
    etcd_children = etcd.start(request, environ)
    children += [python_child, *etcd_children]
    measured, reserved = _kernel_facts(request, seconds)
    if request.thorough:
        measured["login_python"] = _login_shell_python(request, environ, children)
    bounded_child.wait_all(children)
    measured.update(
        folders.survey_result(survey_child, request),
        python=interpreter.result(python_child, python),
    )
    measured.update(query.result(gpu_children), etcd=etcd.result(etcd_children))
    seconds.update(python=python_child.seconds, folders=survey_child.seconds)
    seconds.update(("gpus", gpu_child.seconds) for gpu_child in gpu_children)
    seconds["total"] = round(time.monotonic() - began, 4)
    return FactsResult(replace(facts, **measured, part_seconds=seconds), environ, reserved)


def _static_facts(request: FactsRequest) -> Facts:
    """Return what is known without asking anybody."""
    home = os.path.expanduser("~")
    home = home if os.path.isabs(home) else "/"
    return Facts(
        node=request.node,
        hostname=os.uname().nodename,
        user=users.login_name(),
        home=home,
        ssh_address=interfaces.ssh_server_address(os.environ),
        workdir=folders.absolute(request.workdir, home),
        project=folders.absolute(request.project, home) if request.project else "",
        machine=os.uname().machine,
    )


def _expand_home(python: str, home: str) -> str:
    """Return the interpreter's path if it starts with `~/`; others are found in their own time."""
    return folders.absolute(python, home) if python.startswith("~/") else python


def _login_shell_python(
    request: FactsRequest, environ: Dict[str, str], children: List[bounded_child.BoundedChild]
) -> Interpreter:
    """Return the interpreter of that name in a login shell.

    A path is the same there; and where the setup lines have chosen one, they were meant to.
    """
    from runner.host.facts import login_shell  # no launch shall wait for this code

    name = request.python
    chosen_by_setup = bounded_child.find_program(name, environ) != bounded_child.find_program(
        name, dict(os.environ)
    )
    if chosen_by_setup or not login_shell.BARE_NAME.fullmatch(name):
        return Interpreter()
    shell_child = login_shell.start(name, dict(os.environ))
    bounded_child.wait_all([shell_child], also_read=children)
    shell_child.kill_group()  # start-up files may start an agent
    path = login_shell.result(shell_child)
    if not path:
        return Interpreter()
    python_child = interpreter.start(path, dict(os.environ), "", login_shell.TIMEOUT_S)
    try:
        bounded_child.wait_all([python_child], also_read=children)
        return interpreter.result(python_child, path)
    finally:
        python_child.kill()


def _kernel_facts(
    request: FactsRequest, seconds: Dict[str, float]
) -> Tuple[Dict[str, Any], ports.ReservedPorts]:
    """Return the facts that the kernel tells at once, and the reserved ports."""
    fields: Dict[str, Any] = {}
    reserved = ports.NO_PORTS
    with _timed("network", seconds):
        fields["interfaces"] = interfaces.list_interfaces()
        fields["routes"] = interfaces.list_routes()
    with _timed("machine", seconds):
        fields["cores"] = machine.usable_cores(len(os.sched_getaffinity(0)))
        fields["limits"] = machine.soft_limits()
    with _timed("system", seconds):
        fields["system"] = machine.read_system()
    with _timed("logind", seconds):
        fields["logind_kill_setting"] = logind.kill_setting(users.login_name())
    if request.reserve_port or request.reserve_hub_port:
        with _timed("port", seconds):
            reserved, fields["port_error"] = ports.reserve_ports(
                *(request.port_first, request.port_last),
                store=request.reserve_port,
                hub=request.reserve_hub_port,
            )
            fields.update(reserved_port=reserved.store_port, hub_port=reserved.hub_port)
    if request.reserve_vote_port:
        with _timed("voter", seconds):
            voter = ports.reserve_extra(request.port_first, request.port_last)
            reserved = reserved._replace(voter=voter)
            fields["vote_port"] = reserved.voter_port
    return fields, reserved


@contextmanager
def _timed(name: str, seconds: Dict[str, float]) -> Iterator[None]:
    """Time one part; should it fail on an odd host, its facts stay empty."""
    began = time.monotonic()
    try:
        yield
    except Exception:  # noqa: BLE001, S110 - no oddity of a host may cost all other facts
        pass
    finally:
        seconds[name] = round(time.monotonic() - began, 4)
