"""Readiness of a host for a run: its facts against the spec, in one table.

The launch refuses what stands here, and the checks report it as errors, each its own part.
"""

from __future__ import annotations

import posixpath
from typing import Callable, Dict, List, Tuple

from runner.core.errors import Problem
from runner.core.model.facts import Facts
from runner.core.model.spec import Node, Spec, Task
from runner.core.planning.rendezvous_flags import unsupported_options

MIN_DISK_BYTES = 32 << 20
"""The least free space in which records and the first log lines fit."""


def needs_python(task: Task) -> bool:
    """Return whether the task, or its launcher, runs in the task's interpreter."""
    return not (task.is_plain and task.kind == "command")


def needs_torch(task: Task) -> bool:
    """Return whether torch launches the task; a plain program may not need torch."""
    return not task.is_plain


def visible_gpus(facts: Facts) -> Tuple[int, ...]:
    """Return the visible GPUs: all, or those of the host's own CUDA_VISIBLE_DEVICES.

    That lists indices or prefixes of UUIDs; CUDA ignores everything after the first word that is
    neither, such as -1.
    """
    indices = tuple(gpu.index for gpu in facts.gpus)
    chosen = facts.preset_env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return indices
    visible: List[int] = []
    for word in (word.strip() for word in chosen.split(",")):
        matching = [
            gpu.index
            for gpu in facts.gpus
            if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
        ]
        if len(matching) != 1:
            break
        visible += matching
    return tuple(visible)


def setup_problems(node: Node, facts: Facts) -> List[Problem]:
    """Return the failure of the setup lines."""
    code = facts.setup.exit_code
    if code == 0:
        return []
    how = "did not end in time" if code < 0 else f"ended with {code}"
    return [Problem(node.name, f"cluster.setup {how}", facts.setup.output.strip() or "(no output)")]


def _python_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    if not facts.python.error or not needs_python(spec.task):
        return []
    hint = "set cluster.python to the interpreter that has torch there"
    return [Problem(node.name, facts.python.error, hint)]


def _torch_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    return without_torch(node, facts) if needs_torch(spec.task) else []


def without_torch(node: Node, facts: Facts) -> List[Problem]:
    """Return the problem that a usable interpreter has no torch."""
    if facts.python.error or facts.python.torch:
        return []
    message = f"no torch in {facts.python.executable} (Python {facts.python.version})"
    hint = (
        "set cluster.python to an interpreter that has it, activate its environment in "
        f"cluster.setup, or there: {facts.python.executable} -m pip install torch"
    )
    return [Problem(node.name, message, hint)]


def workdir_problems(node: Node, facts: Facts) -> List[Problem]:
    """Return the reason why nothing can be stored on a host."""
    if not facts.workdir_error:
        return []
    return [Problem(node.name, f"cluster.workdir: {facts.workdir_error}", "set cluster.workdir")]


def _storage_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    if facts.workdir_error or facts.disk_free is None or facts.disk_free >= MIN_DISK_BYTES:
        return workdir_problems(node, facts)
    message = (
        f"cluster.workdir: {facts.workdir} has {facts.disk_free >> 20} MiB free, "
        f"a run needs {MIN_DISK_BYTES >> 20} MiB and room for its logs"
    )
    return [Problem(node.name, message, free_space_hint(spec))]


def free_space_hint(spec: Spec) -> str:
    """Return the ways to get more room below workdir."""
    return (
        f"remove what ended runs left: python -m runner clean --cluster {spec.cluster} "
        "--older-than 1h\nor set cluster.workdir to another disk"
    )


def _code_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    problems = []
    if facts.run_exists:
        message = f"run_id: there is a run {spec.run_id} below {facts.workdir} already"
        problems.append(Problem(node.name, message, "choose another run_id, or leave it out"))
    if spec.task.shipped_file:
        return problems
    if not facts.project_exists:
        problems.append(
            Problem(
                node.name,
                f"cluster.project: there is no folder {facts.project}",
                "set cluster.project to where the code is on the hosts, or to null to have it "
                "pushed",
            )
        )
    elif not facts.script_exists:
        place = "there" if posixpath.isabs(spec.task.target) else f"in {facts.project}"
        problems.append(
            Problem(
                node.name,
                f"task.script: there is no {spec.task.target} {place}",
                "name it relative to cluster.project, or as an absolute path on the hosts",
            )
        )
    return problems


def _gpu_problems(_spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    visible = visible_gpus(facts)
    key = f"cluster.nodes.{node.name}.gpus"
    if node.gpu_ids:
        missing = [index for index in node.gpu_ids if index not in visible]
        request = f"asked for device {missing[0]}" if missing else ""
    else:
        request = f"asked for {node.gpu_count}" if (node.gpu_count or 0) > len(visible) else ""
    if not request:
        return []
    source = "" if facts.gpu_source == "none" else f" ({facts.gpu_source})"
    available = f"{len(visible) or 'none'}{source}"
    legal = f"0 to {len(visible)}, or a list of {list(visible)}" if visible else "0"
    return [
        Problem(node.name, f"{key}: {request}, the host has {available}", f"legal here: {legal}")
    ]


def _port_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    reserves = spec.rendezvous.reserves_port(node.name, spec.master.name)
    if not reserves or facts.reserved_port:
        return []
    hint = "set cluster.master_port to another port, a range such as 29500-29600, or auto"
    return [Problem(node.name, f"cluster.master_port: {facts.port_error}", hint)]


def _rendezvous_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    torch = facts.python.torch
    return _etcd_problems(spec, node, facts) + [
        Problem(node.name, f"torch {torch} is there, and {key} needs {since} or newer", hint)
        for key, since, hint in unsupported_options(spec, torch)
    ]


def _etcd_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    if node.name != spec.rendezvous.serve:
        return []
    etcd, key = facts.etcd, "rendezvous.serve"
    if not etcd.program:
        hint = (
            "install it there (Debian's package is etcd-server), add its folder to PATH in "
            "cluster.setup, or set rendezvous.endpoint=HOST:PORT to one that runs"
        )
        return [Problem(node.name, f"{key}: there is no etcd on its PATH", hint)]
    if not etcd.supports_v2:
        message = f"{key}: {etcd.program} is etcd {etcd.version}, which has no v2 API for torch"
        hint = "install etcd 3.4 or 3.5 there, or choose rendezvous=c10d"
        return [Problem(node.name, message, hint)]
    return []


def _logout_problems(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    """Only a run that outlives its controller has to outlive its login session."""
    if not facts.logind_kill_setting or (spec.disconnect_s and not spec.detach):
        return []
    message = (
        "logind would kill the run as soon as its launch has logged out again "
        f"({facts.logind_kill_setting})"
    )
    hint = (
        f"have KillUserProcesses=no, or KillExcludeUsers={facts.user}, set there; or stay: leave "
        "out detach=true and disconnect_s=never"
    )
    return [Problem(node.name, message, hint)]


Judgement = Callable[[Spec, Node, Facts], List[Problem]]

REQUIREMENTS: Dict[str, Judgement] = {
    "setup": lambda _spec, node, facts: setup_problems(node, facts),
    "python": _python_problems,
    "torch": _torch_problems,
    "storage": _storage_problems,
    "code": _code_problems,
    "gpus": _gpu_problems,
    "network": _port_problems,
    "rendezvous": _rendezvous_problems,
    "logout": _logout_problems,
}
"""The requirements of a run on a host, by the check that reports them."""


def requirement_problems(check: str, spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    """Return the requirements of one check that a host does not meet."""
    judgement = REQUIREMENTS.get(check)
    return judgement(spec, node, facts) if judgement else []


def problems_of(spec: Spec, node: Node, facts: Facts) -> List[Problem]:
    """Return every requirement that a host does not meet; a failed setup hides the others."""
    return setup_problems(node, facts) or [
        problem for judgement in REQUIREMENTS.values() for problem in judgement(spec, node, facts)
    ]
