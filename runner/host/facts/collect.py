"""Everything the plan depends on about this host, in one answer and within a bounded time."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Tuple

from runner.core.model.facts import Facts, FactsRequest, Python
from runner.host.facts import etcd, interfaces, interpreter, logind, machine, ports, setup, system
from runner.host.gpu import query
from runner.host.process import bounded_child


@dataclass
class Collected:
    """What the link keeps of what it learned.

    Attributes:
        facts: What the controller is told.
        environ: The environment the task shall run in: ours, as the setup lines left it.
        held: The sockets that reserve the master's ports, bound; whoever called closes them.
    """

    facts: Facts
    environ: Dict[str, str]
    held: ports.Held = ports.NOTHING_HELD


def collect(request: FactsRequest) -> Collected:
    """Learn what `request` asks for.

    Whatever may hang is done in children with deadlines, side by side. Nothing is written to a
    disk, torch is not imported, and what cannot be known is left empty.
    """
    children: List[bounded_child.Child] = []
    try:
        return _collect(request, children)
    finally:
        for child in children:
            child.kill()


def _collect(request: FactsRequest, children: List[bounded_child.Child]) -> Collected:
    began = time.monotonic()
    facts = _start_of(request)
    environ = dict(os.environ)
    seconds: Dict[str, float] = {}
    devices = []
    if request.gpus or not request.hosts_only:
        devices = query.start(environ, request.deadline_s, health=request.thorough)
    children += devices
    if request.setup:
        shell = setup.start(request.setup, environ, facts.project, request.setup_s)
        children.append(shell)
        bounded_child.gather([shell], beside=devices)
        seconds["setup"] = shell.seconds
        ended, environ = setup.result(shell, request.setup, environ)
        facts = replace(facts, setup=ended)
        if ended.code != 0:
            return Collected(replace(facts, seconds=seconds), environ)
    folders = machine.survey(request, facts.home)
    children.append(folders)
    if request.hosts_only:
        bounded_child.gather(children)
        told = {**machine.surveyed(folders, request), **query.result(devices)}
        return Collected(replace(facts, **told), environ)
    python = _expanded(request.python, facts.home)
    path = {"PYTHONPATH": request.python_path} if request.python_path else {}
    asked = interpreter.start(
        *(python, {**environ, **path}, facts.project, request.deadline_s, request.packages)
    )
    store = etcd.start(request, environ)
    children += [asked, *store]
    found, held = _look(request, seconds)
    if request.thorough:
        found["login_python"] = _in_login_shell(request, environ, children)
    bounded_child.gather(children)
    found.update(machine.surveyed(folders, request), python=interpreter.result(asked, python))
    found.update(query.result(devices), etcd=etcd.result(store))
    seconds.update(python=asked.seconds, folders=folders.seconds)
    seconds.update(("gpus", device.seconds) for device in devices)
    seconds["total"] = round(time.monotonic() - began, 4)
    return Collected(replace(facts, **found, seconds=seconds), environ, held)


def _start_of(request: FactsRequest) -> Facts:
    """Return what is known without asking anybody."""
    home = os.path.expanduser("~")
    home = home if os.path.isabs(home) else "/"
    return Facts(
        node=request.node,
        hostname=os.uname().nodename,
        user=machine.user(),
        home=home,
        reached_at=interfaces.reached_at(os.environ),
        workdir=machine.absolute(request.workdir, home),
        project=machine.absolute(request.project, home) if request.project else "",
        machine=os.uname().machine,
    )


def _expanded(python: str, home: str) -> str:
    """Return the interpreter's path if it starts with `~/`; others are found in their own time."""
    return machine.absolute(python, home) if python.startswith("~/") else python


def _in_login_shell(
    request: FactsRequest, environ: Dict[str, str], children: List[bounded_child.Child]
) -> Python:
    """Return the interpreter of that name in a login shell.

    A path is the same there; and where the setup lines have chosen one, they were meant to.
    """
    from runner.host.facts import login_shell  # no launch shall wait for this code

    name = request.python
    chosen = bounded_child.find(name, environ) != bounded_child.find(name, dict(os.environ))
    if chosen or not login_shell.BARE.fullmatch(name):
        return Python()
    shell = login_shell.start(name, dict(os.environ))
    bounded_child.gather([shell], beside=children)
    shell.sweep()  # start-up files may start an agent
    path = login_shell.result(shell)
    if not path:
        return Python()
    asked = interpreter.start(path, dict(os.environ), "", login_shell.LIMIT_S)
    try:
        bounded_child.gather([asked], beside=children)
        return interpreter.result(asked, path)
    finally:
        asked.kill()


def _look(request: FactsRequest, seconds: Dict[str, float]) -> Tuple[Dict[str, Any], ports.Held]:
    """Return the facts that the kernel tells at once, and the reserved ports."""
    found: Dict[str, Any] = {}
    held = ports.NOTHING_HELD
    with _part("network", seconds):
        found["interfaces"] = interfaces.interfaces()
        found["routes"] = interfaces.routes()
    with _part("machine", seconds):
        found["cores"] = machine.cores(len(os.sched_getaffinity(0)))
        found["limits"] = machine.limits()
    with _part("system", seconds):
        found["system"] = system.look()
    with _part("logind", seconds):
        found["logind_kills"] = logind.kills(machine.user())
    if request.hold_port or request.hold_hub:
        with _part("port", seconds):
            held, found["port_error"] = ports.hold(
                *(request.port_first, request.port_last),
                store=request.hold_port,
                hub=request.hold_hub,
            )
            found.update(held_port=held.port, hub_port=held.hub_port)
    if request.hold_vote:
        with _part("voter", seconds):
            voter = ports.hold_beside(request.port_first, request.port_last)
            held = held._replace(voter=voter)
            found["vote_port"] = held.vote_port
    return found, held


@contextmanager
def _part(name: str, seconds: Dict[str, float]) -> Iterator[None]:
    """Time one part; should it fail on an odd host, its facts stay empty."""
    began = time.monotonic()
    try:
        yield
    except Exception:  # noqa: BLE001, S110 - no oddity of a host may cost all other facts
        pass
    finally:
        seconds[name] = round(time.monotonic() - began, 4)
