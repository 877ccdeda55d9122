"""Launch facts: interpreter, network, limits, ports and etcd, which only a launch needs."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Tuple

from runner.core.model.facts import Facts, FactsRequest, Interpreter
from runner.host.facts import etcd, folders, interfaces, interpreter, logind, machine, ports
from runner.host.process import bounded_child, procfs


def collect(
    request: FactsRequest,
    facts: Facts,
    environ: Dict[str, str],
    children: List[bounded_child.BoundedChild],
    seconds: Dict[str, float],
) -> Tuple[Dict[str, Any], ports.ReservedPorts]:
    """Return fields of Facts, and the ports that were reserved.

    Args:
        request: What to collect.
        facts: What is known already.
        environ: The environment of the task.
        children: Those that run meanwhile; ours are added.
        seconds: Takes how long each part took.
    """
    python = request.python  # a bare name is looked up on the PATH
    python = folders.absolute(python, facts.home) if python.startswith("~/") else python
    path_env = {"PYTHONPATH": request.python_path} if request.python_path else {}
    python_child = interpreter.start(
        *(python, {**environ, **path_env}, facts.project, request.tool_timeout_s, request.packages)
    )
    etcd_children = etcd.start(request, environ)
    children += [python_child, *etcd_children]
    fields, reserved = _kernel_facts(request, seconds)
    if request.thorough:
        fields["login_python"] = _login_shell_python(request, environ, children)
    bounded_child.wait_all([python_child, *etcd_children], also_read=children)
    fields.update(python=interpreter.result(python_child, python), etcd=etcd.result(etcd_children))
    seconds["python"] = python_child.seconds
    return fields, reserved


def _login_shell_python(
    request: FactsRequest, environ: Dict[str, str], children: List[bounded_child.BoundedChild]
) -> Interpreter:
    """Return the interpreter of that name in a login shell.

    Not for a path, which is the same there, nor where the setup lines have chosen another one.
    """
    from runner.host.facts import login_shell  # noqa: PLC0415 (only checks need it)

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
    """Return the facts that the kernel has at once, and the reserved ports."""
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
        fields["logind_kill_setting"] = logind.kill_setting(procfs.login_name())
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
    """Time one part; if it fails on an unusual host, its facts stay empty."""
    began = time.monotonic()
    try:
        yield
    except Exception:  # noqa: BLE001, S110 - one part must not cost all other facts
        pass
    finally:
        seconds[name] = round(time.monotonic() - began, 4)
