"""Facts collection: everything the plan depends on about this host, within a bounded time.

The survey of the run's folders (workdir, project, script and release) is made in a child.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from runner.core.wire.facts import (
    MANAGED_ENV,
    PREPARED,
    Facts,
    FactsRequest,
    Interpreter,
    Prepare,
)
from runner.host.facts import container, interfaces, interpreter, machine, ports, setup
from runner.host.gpu import query
from runner.host.process import procfs
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.storage.permissions import find_exposure
from runner.host.storage.pool import has_release, has_tasks

LOOK_TIMEOUT_S = 10.0  # for whether an environment is there

RANK_VARIABLE = (
    r"((LOCAL|GROUP|NODE|ROLE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|NNODES|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE|ERROR_FILE)|ROLE_NAME"
    r"|SLURM_(PROCID|LOCALID|NODEID|NPROCS|NTASKS\w*|GTIDS|TASK_PID|TASKS_PER_NODE|STEP\w+)"
    r"|SLURM_CPU_BIND\w*|(OMPI|MV2|MVP)_COMM_WORLD_\w+|MPI_LOCAL\w+|JSM_NAMESPACE_\w+"
    r"|PMI_(RANK|SIZE|ID|FD|PORT|APPNUM|SPAWNED|UNIVERSE_SIZE|LOCAL_\w+)"
    r"|PMIX_(RANK|NAMESPACE|SERVER_\w+)|PALS_(RANKID|NODEID|LOCAL_\w+)|PET_\w+"
    r"|FLUX_(TASK_\w+|JOB_SIZE|JOB_NNODES)|HOROVOD_((LOCAL|CROSS)_)?(RANK|SIZE)"
)
"""By these a process knows its place among those of torchrun, srun, mpirun or the like; libraries
believe them. What describes a whole job is none of them. PET_* are options of a torchrun."""


@dataclass
class FactsResult:
    facts: Facts
    environ: Dict[str, str]  # to run the task in: ours, as the setup lines left it
    reserved: ports.ReservedPorts = ports.NO_PORTS  # the caller closes them
    prepare: Optional[Prepare] = None  # the environment that was asked for


def collect(request: FactsRequest) -> FactsResult:
    """Collect what `request` asks for.

    Whatever may hang runs in children with deadlines, side by side. Nothing is written to a disk,
    torch is not imported, and what cannot be found out is left empty.
    """
    children: Dict[str, BoundedChild] = {}
    try:
        return _collect(request, children)
    finally:
        for child in children.values():
            child.kill()


def _collect(request: FactsRequest, children: Dict[str, BoundedChild]) -> FactsResult:
    facts = _static_facts(request)
    environ = dict(os.environ)
    for_launch = not request.skip_launch_facts
    if for_launch and query.has_driver():
        children["gpus"] = query.start(request.tool_timeout_s, health=request.gpu_health)
    if request.setup:
        child = setup.start(request.setup, environ, facts.project, request.setup_timeout_s)
        children["setup"] = child
        wait_all([child], also_read=[*children.values()])
        setup_result, environ = setup.result(child, environ)
        facts = replace(facts, setup=setup_result)
        if setup_result.exit_code != 0:
            return FactsResult(facts, environ)
    for name, value in os.environ.items():  # what the setup has set stays
        if environ.get(name) == value and re.fullmatch(RANK_VARIABLE, name):
            del environ[name]
    facts = replace(facts, preset_env={k: environ[k] for k in MANAGED_ENV if k in environ})
    survey = BoundedChild(lambda: _survey(request, facts.home), request.tool_timeout_s)
    children["folders"] = survey
    fields: Dict[str, Any] = {}
    reserved = ports.NO_PORTS
    if for_launch:
        fields, reserved = _launch_facts(request, facts, environ, children)
        fields.update(query.result(children.get("gpus")))
    else:
        wait_all([survey])
    fields.update(survey.report())
    if "workdir_error" not in fields:
        reason = f"no answer within {survey.limit_s:g} s" if survey.timed_out else survey.text
        fields["workdir_error"] = f"looking at {request.workdir}: {reason}"
    return FactsResult(replace(facts, **fields), environ, reserved, request.prepare)


def _static_facts(request: FactsRequest) -> Facts:
    home = os.path.expanduser("~")
    home = home if os.path.isabs(home) else "/"
    return Facts(
        node=request.node,
        hostname=os.uname().nodename,
        user=procfs.login_name(),
        home=home,
        uid=os.getuid(),
        gid=os.getgid(),
        groups=tuple(sorted({*os.getgroups()} - {os.getgid()})),
        host_python=sys.executable or "",
        ssh_address=ssh_server_address(os.environ),
        workdir=absolute(request.workdir, home),
        project=absolute(request.project, home) if request.project else "",
    )


def ssh_server_address(environ: Mapping[str, str]) -> str:
    """Return the address of this host that the SSH client connected to, "" without one."""
    fields = environ.get("SSH_CONNECTION", "").split()
    return fields[2].partition("%")[0] if len(fields) == 4 else ""


def _launch_facts(
    request: FactsRequest,
    facts: Facts,
    environ: Dict[str, str],
    children: Dict[str, BoundedChild],
) -> Tuple[Dict[str, Any], ports.ReservedPorts]:
    python = request.python  # a bare name is looked up on the PATH
    python = absolute(python, facts.home) if python.startswith("~/") else python
    trial = None
    path_env = {"PYTHONPATH": request.python_path} if request.python_path else {}
    inside: Dict[str, Any] = {}
    if request.prepare is not None:
        inside = _environment(request.prepare, facts, environ, children)
        python = python.replace(PREPARED, inside["environment"])
    if inside.get("awaits_environment") and request.python.startswith(PREPARED):
        inside["python"] = Interpreter(executable=python)
    elif request.container is None:
        children["python"] = interpreter.start(
            python,
            {**environ, **path_env},
            facts.project,
            request.modules,
            request.tool_timeout_s,
        )
    else:
        trial = container.Trial(request, facts, environ)
        children["python"] = trial.child
    logind = machine.ask_logind()
    if logind is not None:
        children["logind"] = logind
    fields = inside
    asked: Dict[str, Callable[[], object]] = {
        "cores": lambda: machine.usable_cores(len(os.sched_getaffinity(0))),
        "limits": machine.soft_limits,
        "infiniband": lambda: tuple(procfs.list_names("/sys/class/infiniband")),
        "interfaces": interfaces.read_interfaces,
        "routes": lambda: tuple(interfaces.read_routes()),
    }
    for name, ask in asked.items():
        with contextlib.suppress(Exception):  # what an unusual host cannot tell stays empty
            fields[name] = ask()
    reserved, fields["port_error"] = ports.reserve_ports(request)
    fields.update(reserved.numbers)
    try:
        wait_all([*children.values()])
    finally:
        if trial is not None:
            trial.end()
    fields["logind_kill_setting"] = machine.logind_kill_setting(facts.user, logind)
    if trial is not None:
        fields["container"], fields["python"] = trial.result()
    elif "python" in children:
        fields["python"] = interpreter.result(children["python"], python)
    return fields, reserved


def _environment(
    prepare: Prepare, facts: Facts, environ: Dict[str, str], children: Dict[str, BoundedChild]
) -> Dict[str, Any]:
    from runner.host.storage import environment  # noqa: PLC0415 (few launches have one)

    def look() -> None:
        folder = environment.folder_of(prepare, environ, facts.workdir)
        report_facts(environment=folder, awaits_environment=not environment.is_made(folder))

    child = BoundedChild(look, LOOK_TIMEOUT_S)
    children["environment"] = child
    wait_all([child], also_read=[*children.values()])
    found = child.report()
    if not found:
        raise ValueError(f"{facts.workdir} did not answer within {LOOK_TIMEOUT_S:g} s")
    return found


def absolute(path: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(os.path.join(home, path[2:]))
    try:
        return os.path.abspath(path)
    except OSError:  # our working directory was deleted
        return os.path.normpath(os.path.join(home, path))


def unwritable_reason(path: str) -> str:
    """Return why no file can be written below `path`, "" if it can; nothing is tried out."""
    parent = _nearest_existing(path)
    if not os.path.exists(parent):
        return f"{parent} is a link to nothing"
    if not os.path.isdir(parent):
        return f"{parent} is a file, not a folder"
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        return f"{parent} is on a read-only file system"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"no permission to write in {parent}"
    return ""


def _survey(request: FactsRequest, home: str) -> None:
    """Look at the folders of a run, in a child: any of them may be on a dead network disk."""
    report_facts(shm_free=_free_bytes("/dev/shm"))
    workdir = absolute(request.workdir, home)
    exposure = find_exposure(workdir)
    report_facts(
        workdir_error=str(exposure) if exposure else unwritable_reason(workdir),
        workdir_exposed=exposure.place if exposure else "",
        disk_free=_free_bytes(_nearest_existing(workdir)),
    )
    if request.tasks_hash:
        report_facts(has_tasks=has_tasks(workdir, request.tasks_hash))
    project = absolute(request.project, home)
    if request.project:
        report_facts(project_exists=os.path.isdir(project))
    if request.script:
        script = absolute(os.path.join(project, request.script), home)
        programs = (script, os.path.join(script, "__main__.py"))  # Python runs a folder with one
        report_facts(script_exists=any(map(os.path.isfile, programs)))
    if request.paths:
        missing = [path for path in request.paths if not os.path.exists(absolute(path, home))]
        report_facts(missing_paths=missing)
    if request.release:
        report_facts(has_release=has_release(workdir, request.release))


def _nearest_existing(path: str) -> str:
    """Return the nearest parent of `path` that is there, even as a dangling link."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _free_bytes(path: str) -> Optional[int]:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
