"""Readiness of a host for a run: what a launch asks it, and its facts against the spec.

The launch refuses what stands here, and the checks report it as errors, each its own part.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from runner.core.errors import Problem
from runner.core.planning.container import container_problems, trial_container
from runner.core.planning.endpoints import interface_problems
from runner.core.shell import cluster_flag, quote, this_program
from runner.core.spec import Node, Spec, Task
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.plan import CodeRef

MIN_DISK_BYTES = 32 << 20
"""The least free space in which records and the first log lines fit."""
MAX_SPARE_PORTS = 8
"""More attempts than that meet at the same port again."""

CONTAINER_START_S = 300.0  # of a first container: that of a large image is slow

CONDA_HINT = 'a line before has to define it: source "$(conda info --base)/etc/profile.d/conda.sh"'

WORKDIR_HINTS = {
    "above": (
        "whoever can change it can replace what runs here: have its owner do `chmod go-w` on it,\n"
        "or set cluster.workdir to a folder that nobody else can change, such as ~/.runner"
    ),
    "inside": (
        "each user needs a work folder that nobody else can change, for instance\n"
        "cluster.workdir={}-${{oc.env:USER}}"
    ),
}
"""What to do about a workdir, by what other users can change."""


def facts_request(spec: Spec, node: Node, code: CodeRef) -> FactsRequest:
    task = spec.task
    ports = spec.cluster.master_port
    script = task.target if task.kind == "script" else ""
    if code.release and (code.script or not posixpath.isabs(script)):
        script = ""  # it comes with the release
    wanted = spec.container
    pull = wanted.pull if wanted.fetches else "never"
    is_master = node is spec.master
    has_store = is_master and spec.rendezvous.uses_master_store
    has_peers = len(spec.nodes) + len(spec.spares) > 1
    return FactsRequest(
        node=node.name,
        run_id=spec.run_id,
        setup=spec.setup_of(node),
        python=spec.python_of(node),
        container=trial_container(spec, node) if wanted else None,
        pull=pull,
        pull_timeout_s=0.0 if pull == "never" else wanted.prepare_timeout_s,
        container_start_s=min(wanted.prepare_timeout_s, CONTAINER_START_S),
        project="" if task.shipped_file or code.release else spec.cluster.project,
        script=script,
        workdir=spec.cluster.workdir,
        tasks_hash=code.tasks_hash,
        release=code.release,
        keep_place=code.keep_place if task.keep else "",
        reserve_port=has_store,
        spare_ports=min(spec.relaunch.max, MAX_SPARE_PORTS) if has_store else 0,
        reserve_hub_port=is_master and has_peers,
        port_first=ports.first if is_master else 0,
        port_last=ports.last if is_master else 0,
        python_path=spec.env_of(node).get("PYTHONPATH", ""),
    )


def needs_python(task: Task) -> bool:
    """Return whether the task, or its launcher, runs in the task's interpreter."""
    return not (task.without_torchrun and task.kind == "command")


def without_removed_env(spec: Spec, node: Node, facts: Facts) -> Facts:
    """Return the facts as ranks meet them whose environment lacks what the user takes out."""
    removed = spec.removed_env_of(node)
    preset = {name: value for name, value in facts.preset_env.items() if name not in removed}
    return replace(facts, preset_env=preset)


def visible_gpus(facts: Facts) -> tuple[int, ...]:
    """Return the visible GPUs: all, or those of the host's own CUDA_VISIBLE_DEVICES.

    That lists indices or prefixes of UUIDs; CUDA ignores everything after the first word that is
    neither, such as -1.
    """
    indices = tuple(gpu.index for gpu in facts.gpus)
    chosen = facts.preset_env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return indices
    visible: list[int] = []
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


def setup_problems(node: Node, facts: Facts) -> list[Problem]:
    code = facts.setup.exit_code
    if code == 0:
        return []
    how = "did not end in time" if code < 0 else f"ended with {code}"
    output = facts.setup.output.strip()
    hints = [f"| {line}" for line in output.splitlines()]
    if "conda init" in output:
        hints.append(CONDA_HINT)
    hint = "\n".join([*hints, "change cluster.setup, or install what it needs there"])
    return [Problem(node.name, f"cluster.setup {how}", hint)]


def _python_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    if facts.awaits_environment:
        return
    if facts.python.error and needs_python(spec.task) and not spec.container:
        hint = "set cluster.python to the interpreter that has torch there"
        if facts.environment:
            hint = f"to have it made again, remove there {facts.environment}.made"
        yield Problem(node.name, facts.python.error, hint)


def without_torch(node: Node, facts: Facts) -> list[Problem]:
    """Return the problem that a usable interpreter has no torch."""
    if facts.python.error or facts.python.torch or facts.awaits_environment:
        return []
    message = f"no torch in {facts.python.executable} (Python {facts.python.version})"
    if facts.container.step:
        hint = "choose an image that has it, or set container.python to the one in it that does"
        return [Problem(node.name, f"{message} of the image", hint)]
    if facts.environment and facts.python.executable.startswith(facts.environment):
        hint = "have it installed there: `uv add torch` here, or by a line of cluster.prepare"
        return [Problem(node.name, message, hint)]
    hint = (
        "set cluster.python to an interpreter that has it, activate its environment in "
        f"cluster.setup, or there: {facts.python.executable} -m pip install torch"
    )
    return [Problem(node.name, message, hint)]


def workdir_problems(node: Node, facts: Facts) -> list[Problem]:
    if not facts.workdir_error:
        return []
    hint = WORKDIR_HINTS.get(facts.workdir_exposed, "set cluster.workdir")
    hint = hint.format(quote(facts.workdir))
    return [Problem(node.name, f"cluster.workdir: {facts.workdir_error}", hint)]


def _storage_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    yield from workdir_problems(node, facts)
    free = facts.disk_free
    if free is not None and free < MIN_DISK_BYTES and not facts.workdir_error:
        message = (
            f"cluster.workdir: {facts.workdir} has {free >> 20} MiB free, "
            f"a run needs {MIN_DISK_BYTES >> 20} MiB and room for its logs"
        )
        yield Problem(node.name, message, free_space_hint(spec))
    yield from _code_problems(spec, node, facts)


def free_space_hint(spec: Spec) -> str:
    return (
        f"see what ended runs left: {this_program()} clean {cluster_flag(spec.cluster.name)} "
        "--older-than 0s --dry-run\n"
        "without --dry-run that is removed; or set cluster.workdir to another disk"
    )


def _code_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    if facts.run_exists:
        message = f"run_id: there is a run {spec.run_id} below {facts.workdir} already"
        yield Problem(node.name, message, "choose another run_id, or leave it out")
    if facts.kept_by:
        message = f"task.keep: run {facts.kept_by} writes to the folders of this task"
        hint = f"wait for its end, or: {this_program()} stop --run {quote(facts.kept_by)}"
        yield Problem(node.name, message, hint)
    if spec.task.shipped_file:
        return
    if not facts.project_exists:
        message = f"cluster.project: there is no folder {facts.project}"
        hint = "set cluster.project to where the code is on the hosts, or to null to have it pushed"
        yield Problem(node.name, message, hint)
    elif not facts.script_exists:
        yield missing_script(spec.task, node, facts.project)


def missing_script(task: Task, node: Node, project: str) -> Problem:
    place = "there" if posixpath.isabs(task.target) else f"in {project}"
    message = f"task.script: there is no file {task.target} {place}"
    hint = "name it relative to cluster.project, or as an absolute path on the hosts"
    return Problem(node.name, message, hint)


def _gpu_problems(_spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    visible = visible_gpus(facts)
    request = f"asked for {node.gpu_count}" if (node.gpu_count or 0) > len(visible) else ""
    if node.gpu_ids:
        missing = [index for index in node.gpu_ids if index not in visible]
        request = f"asked for device {missing[0]}" if missing else ""
    if not request:
        return
    message = f"cluster.nodes.{node.name}.gpus: {request}, the host has "
    if facts.gpu_source == "none":
        hint = "only NVIDIA's are counted; for others leave gpus and gpus_per_node out, and set "
        ranks = node.gpu_count or len(node.gpu_ids)
        hint += f"cluster.nproc_per_node={ranks} and cluster.backend, such as hccl"
        yield Problem(node.name, f"{message}no NVIDIA GPU", hint)
        return
    available = f"{len(visible) or 'none'} ({facts.gpu_source})"
    legal = f"0 to {len(visible)}, or a list of {list(visible)}" if visible else "0"
    yield Problem(node.name, f"{message}{available}", f"legal here: {legal}")


def _network_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    yield from interface_problems(node, facts)
    is_master = node.name == spec.master.name
    if is_master and spec.rendezvous.uses_master_store and not facts.reserved_port:
        hint = "set cluster.master_port to another port, a range such as 29500-29600, or auto"
        yield Problem(node.name, f"cluster.master_port: {facts.port_error}", hint)


def _logout_problems(spec: Spec, node: Node, facts: Facts) -> Iterator[Problem]:
    """Only a run that is left at once is certain to outlive its login session."""
    if not (facts.logind_kill_setting and spec.detach):
        return
    message = (
        "logind would kill the run as soon as its launch has logged out again "
        f"({facts.logind_kill_setting})"
    )
    hint = (
        f"have KillUserProcesses=no, or KillExcludeUsers={facts.user}, set there; or stay: leave "
        "out detach=true"
    )
    yield Problem(node.name, message, hint)


Requirement = Callable[[Spec, Node, Facts], Iterable[Problem]]

REQUIREMENTS: dict[str, Requirement] = {
    "setup": lambda _, node, facts: setup_problems(node, facts),
    "container": container_problems,
    "python": _python_problems,
    "torch": lambda spec, node, facts: (
        [] if spec.task.without_torchrun else without_torch(node, facts)  # it may do without
    ),
    "storage": _storage_problems,
    "gpus": _gpu_problems,
    "network": _network_problems,
    "logout": _logout_problems,
}
"""The requirements of a run on a host, by the check that reports them."""


def requirement_problems(check: str, spec: Spec, node: Node, facts: Facts) -> list[Problem]:
    return list(REQUIREMENTS[check](spec, node, facts)) if check in REQUIREMENTS else []


def problems_of(spec: Spec, node: Node, facts: Facts) -> list[Problem]:
    """Return every requirement that a host does not meet; a failed setup hides the others."""
    facts = without_removed_env(spec, node, facts)
    return setup_problems(node, facts) or [
        problem for required in REQUIREMENTS.values() for problem in required(spec, node, facts)
    ]
