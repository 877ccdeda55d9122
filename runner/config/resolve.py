"""Resolve: composed values become a `Spec`, with every check that needs no host."""

from __future__ import annotations

import fnmatch
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from runner.checks.base import all_checks
from runner.config.arguments import words_of
from runner.config.kinds import Problems, is_settable, read_section, read_value
from runner.config.nodes import listed, read_nodes, read_slurm, select_nodes
from runner.core.errors import join_or, suggest
from runner.core.planning.container import extra_problems
from runner.core.shell import expand_home, this_program
from runner.core.spec import (
    ENGINES,
    MASTER,
    UV_INPUTS,
    UV_LINES,
    Cluster,
    ContainerSpec,
    Node,
    Secret,
    Spec,
    Ssh,
    Task,
    Torchrun,
    keys_of,
)
from runner.core.wire.facts import PREPARED
from runner.core.wire.notification import MIN_HIDDEN_CHARS, target_problem

PROGRAM_KEYS = ("module", "script", "command")


@dataclass(frozen=True)
class Context:
    """What a configuration was composed of, and where."""

    cluster: str  # the name of its YAML file, as that of the task
    task: str
    cwd: str
    environ: Mapping[str, str]
    for_contact: bool = False  # whether the hosts are only to be reached: there is no task


def resolve(values: Mapping[str, Any], context: Context, problems: Problems) -> Spec:
    """Return the `Spec` of composed values; raise ConfigError with every problem."""
    spec = Spec(**read_section(problems, "", Spec, values))
    known = {problem.subject for problem in problems}
    across = Problems()
    cluster = _with_paths(across, replace(spec.cluster, name=context.cluster), context)
    task = replace(spec.task, name=context.task)
    if cluster.scheduler == "slurm":
        has_spares = spec.relaunch.max > 0
        environ = context.environ
        cluster, task, all_nodes = read_slurm(across, cluster, task, environ, spares=has_spares)
    else:
        all_nodes = read_nodes(across, cluster)
    if cluster.scheduler == "slurm" and not cluster.slurm.job_id:
        nodes = tuple(all_nodes.values())
        spares: tuple[Node, ...] = ()
        min_nodes = task.nnodes[0] if task.nnodes else None
    else:
        nodes, spares, min_nodes = select_nodes(across, cluster, task, all_nodes)
    if context.for_contact:
        task = replace(task, kind="command", target="true")
    else:
        task = _with_program(across, task)
    cluster, secret_values = _with_environment(across, cluster, task, nodes, context)
    container = _with_engine(across, spec.container)
    if container:
        nodes = tuple(replace(node, python=container.python) for node in nodes)
        spares = tuple(replace(node, python=container.python) for node in spares)
    spec = replace(
        spec,
        cluster=_with_preparation(cluster),
        task=task,
        container=container,
        deploy=replace(spec.deploy, enabled=not spec.cluster.project),
        nodes=nodes,
        spares=spares,
        min_nodes=min_nodes,
        secrets=secret_values,
        program=this_program(),
    )
    _check_rendezvous(across, spec)
    _check_entry(across, spec)
    _check_preparation(across, spec)
    _check_run(across, spec)
    # What follows from a value that is not legal is no problem of its own.
    problems += [problem for problem in across if problem.subject not in known]
    problems.raise_any()
    return spec


def _with_paths(problems: Problems, cluster: Cluster, context: Context) -> Cluster:
    """Return a cluster whose files here are there; with absolute paths, for the record."""
    ssh = cluster.ssh
    changed: dict[str, Any] = {}
    for name in ("key", "config", "known_hosts"):
        path = getattr(ssh, name)
        file = Path(context.cwd, expand_home(path or ""))
        is_usual = path in (None, "", getattr(Ssh(), name)) or name == "known_hosts"
        if not is_usual and (file.is_dir() or not file.exists()):
            problems.report(f"cluster.ssh.{name}", f"there is no file {path}")
        if path and not path.startswith("~"):
            changed[name] = str(Path(context.cwd, path))
    cwd = Path(context.cwd)
    shell_cwd = Path(context.environ.get("PWD", ""))
    if shell_cwd.is_absolute() and shell_cwd.exists() and shell_cwd.samefile(cwd):
        cwd = shell_cwd  # with symbolic links as the user sees them
    project = cluster.project if cluster.project.startswith("~") else str(cwd / cluster.project)
    return replace(cluster, ssh=replace(ssh, **changed), project=project)


def _with_program(problems: Problems, task: Task) -> Task:
    given = [key for key in PROGRAM_KEYS if getattr(task, key) not in (None, "", [])]
    if not given:
        keys = join_or([f"task.{key}" for key in PROGRAM_KEYS])
        message = f"there is no program; set {keys}"
        problems.report("task", message, "such as task.script=train.py")
    if len(given) > 1:
        message = f"there is more than one program: {' and '.join(given)}"
        problems.report("task", message, f"task.{given[0]}=null removes one")
    task = replace(task, kind=given[0] if given else "script")
    target, words = words_of(problems, task)
    # Their words are among `words`; a host takes no other value for them.
    return replace(task, target=target, words=words, args_before=(), args_after=())


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program of a task without a YAML file."""
    if task.get("module"):
        return str(task["module"]).rpartition(".")[2]
    command = task.get("command") or ""
    words = command if isinstance(command, list) else str(command).split()
    file = task.get("script") or next(iter(words), "")
    return PurePath(str(file)).stem or "task"


def new_run_id(task: str) -> str:
    """Return a new run id, `MMDD-HHMM-TASK-xxxx`, with 1.7 million values of xxxx."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[:40].strip("-") or "task"
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    return f"{datetime.now().astimezone():%m%d-%H%M}-{slug}-{suffix}"


def _with_environment(
    problems: Problems, cluster: Cluster, task: Task, nodes: Sequence[Node], context: Context
) -> tuple[Cluster, dict[str, Secret]]:
    """Return a cluster with the variables that are copied from here, and the secret ones."""
    environ = context.environ
    named = [name for name in cluster.pass_env if "*" not in name]
    for where, names in {"cluster.pass_env": named, "cluster.secrets": cluster.secrets}.items():
        for name in names:
            if name not in environ:
                hint = f"export {name}=… first, or take it out of {where}"
                problems.report(where, f"{name} is not set in this shell's environment", hint)
    found = [
        name
        for pattern in cluster.pass_env
        for name in fnmatch.filter(environ, pattern)
        if is_settable(name) and name not in cluster.secrets
    ]
    passed: dict[str, str | None] = {name: environ.get(name) for name in (*named, *found)}
    secret = {name: Secret(environ.get(name, "")) for name in cluster.secrets}
    recorded = {"cluster.pass_env": passed, "cluster.env": cluster.env, "task.env": task.env}
    recorded |= {f"cluster.nodes.{node.name}.env": node.env for node in nodes}
    for place, env in recorded.items():
        for name in sorted(name for name in secret if env.get(name) is not None):
            message = f"{name} is a secret (cluster.secrets) and would be recorded here"
            problems.report(place, message)
    return replace(cluster, env=passed | cluster.env), secret


def _with_engine(problems: Problems, container: ContainerSpec) -> ContainerSpec:
    """Return the container that ranks run in, if its engine has what the keys ask for."""
    unset = ContainerSpec()
    options = keys_of(ContainerSpec)
    changed = [name for name in options if getattr(container, name) != getattr(unset, name)]
    name = container.engine
    if not name:
        own = ("prefix", "python", "prepare_timeout_s") if container.prefix else ()
        for key in (key for key in changed if key not in own):
            message = "this is a setting of engines, and none is chosen"
            hint = f"choose one: container={' or container='.join(ENGINES)}"
            problems.report(f"container.{key}", message, hint)
        return container if container.prefix else unset
    if container.prefix:
        message = f"{name} is started by the runner's own words"
        problems.report("container.prefix", message, "leave it out, or set container.engine=null")
    if not container.image:
        hint = "name one, such as container.image=pytorch/pytorch:latest"
        problems.report("container.image", f"{name} needs an image", hint)
    for message, hint in extra_problems(container.extra):
        problems.report("container.extra", message, hint)
    return replace(container, program=container.program or name)


def _with_preparation(cluster: Cluster) -> Cluster:
    if cluster.host_python.startswith(PREPARED):  # by default that of the task
        cluster = replace(cluster, host_python=Node("").python)
    if not cluster.environment:
        return cluster
    inputs = (*UV_INPUTS, *cluster.prepare_inputs)
    return replace(cluster, prepare=(*cluster.prepare, *UV_LINES), prepare_inputs=inputs)


def _check_preparation(problems: Problems, spec: Spec) -> None:
    cluster = spec.cluster
    key = "cluster.environment" if cluster.environment else "cluster.prepare"
    if cluster.prepare and spec.container:
        hint = "leave it out, or the container: what ranks need is in its image"
        problems.report(key, "ranks in a container do not see what the host prepares", hint)
    if cluster.prepare_inputs and not cluster.prepare:
        hint = "add cluster.prepare, or cluster.environment=uv"
        problems.report("cluster.prepare_inputs", "there are no lines that read them", hint)


def _check_rendezvous(problems: Problems, spec: Spec) -> None:
    rendezvous = spec.rendezvous
    backend = rendezvous.backend
    count = spec.slurm.nnodes if spec.slurm else len(spec.nodes)
    if backend == "standalone" and count > 1:
        message = f"standalone is for one node alone, and {count} are to be used"
        hint = "choose rendezvous=static or c10d, or set task.nnodes=1"
        problems.report("rendezvous.backend", message, hint)
    if spec.min_nodes is not None and backend in ("static", "standalone"):
        message = f"with {backend} no node can join or leave, so a range of nodes makes no sense"
        hint = "choose rendezvous=c10d or etcd, or one number of nodes"
        problems.report("task.nnodes", message, hint)
    if rendezvous.uses_etcd and not rendezvous.endpoint:
        message = f"{backend} needs an etcd server"
        problems.report("rendezvous.endpoint", message, "set rendezvous.endpoint=HOST:PORT")
    if rendezvous.endpoint and not rendezvous.uses_etcd:
        problems.report("rendezvous.endpoint", f"{backend} takes none", "it is for rendezvous=etcd")
    if backend == "static" and spec.torchrun.max_restarts and not spec.task.without_torchrun:
        message = "with a static rendezvous torchrun cannot restart the ranks"
        hint = f"set relaunch.max={spec.torchrun.max_restarts}, or choose rendezvous=c10d"
        problems.report("torchrun.max_restarts", message, hint)


def _check_entry(problems: Problems, spec: Spec) -> None:
    task = spec.task
    entry = f"entry {task.entry}"
    if task.entry == "srun" and spec.slurm is None:
        hint = "choose task.entry=torchrun or plain, or a cluster with scheduler: slurm"
        problems.report("task.entry", "srun is for clusters that Slurm schedules", hint)
    if task.decides and not task.is_plain:
        message = f"with {entry} the ranks of all nodes end together"
        problems.report("task.decides", message, "set task.entry=plain, or leave it out")
    names = [MASTER] if spec.slurm else [MASTER, *(node.name for node in spec.nodes)]
    if task.decides and task.decides not in names:
        message = f"{task.decides} is no node of this run; choose one of {listed(names)}"
        problems.report("task.decides", message, suggest(task.decides, names))
    if not task.without_torchrun:
        return
    # A number of ranks above 1 counts where a node has it of its own.
    harmless = (None, 1, spec.cluster.nproc_per_node)
    for node in (*spec.nodes, *spec.spares) if task.is_plain else ():
        if node.nproc_per_node not in harmless:
            message = "entry plain starts one process per node, which may start its own workers"
            hint = "set it to 1 or auto, or task.entry=torchrun"
            problems.report(f"cluster.nodes.{node.name}.nproc_per_node", message, hint)
    if spec.rendezvous.backend != "static":
        message = f"{spec.rendezvous.backend} is torchrun's, and {entry} starts none"
        hint = "choose rendezvous=static, or task.entry=torchrun"
        problems.report("rendezvous.backend", message, hint)
    for name in keys_of(Torchrun):
        if getattr(spec.torchrun, name) != getattr(Torchrun(), name):
            hint = "leave it out, or set task.entry=torchrun"
            problems.report(f"torchrun.{name}", f"{entry} starts no torchrun", hint)


def _check_run(problems: Problems, spec: Spec) -> None:
    if spec.task.keep and not (spec.pushes_code or spec.task.shipped_file):
        message = f"ranks run in {spec.cluster.project} on the hosts, where folders stay anyway"
        problems.report("task.keep", message, "leave it out; it is for code that is pushed")
    if spec.watch.relaunches and not spec.relaunch.max:
        hint = "set relaunch.max to 1 or more, or watch.action=stop"
        problems.report("watch.action", "restart needs a number of relaunches", hint)
    if spec.debug.rank is not None and spec.task.kind == "command":
        message = "debugpy starts Python programs, and task.command may be any program"
        problems.report("debug.rank", message, "name it by task.script or task.module")
    if spec.debug.rank is not None and spec.slurm:
        message = "a debugger's port on a node of a job would be open to everyone in its network"
        hint = "debug it without slurm: cluster.scheduler=direct"
        problems.report("debug.rank", message, hint)
    for name in spec.skip_checks:
        read_value(problems, "skip_checks", tuple(all_checks()), name)
    for target in spec.notify:
        if problem := target_problem(target):
            hint = "a command that /bin/sh runs with the message as its standard input"
            problems.report("notify", problem, hint)
        for name, secret in spec.secrets.items():
            if len(secret.reveal()) >= MIN_HIDDEN_CHARS and secret.reveal() in target:
                message = f"holds the value of {name}, a secret, and would be recorded"
                problems.report("notify", message, f"write ${name} in its place, in single quotes")
