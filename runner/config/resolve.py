"""Resolve: composed values become a `Spec`, with every check that needs no host."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from runner.checks.base import all_checks
from runner.config.arguments import words_of
from runner.config.kinds import (
    Problems,
    choose,
    join_or,
    read_section,
    unknown_key,
)
from runner.config.nodes import (
    check_decides,
    check_scheduler,
    read_nodes,
    read_slurm,
    select_nodes,
)
from runner.core.errors import Problem
from runner.core.notification import MAX_TARGETS, MIN_HIDDEN_CHARS, target_problem
from runner.core.planning.container.base import engine_of
from runner.core.planning.container.extra import extra_problems
from runner.core.shell import expand_home, this_program
from runner.core.spec import (
    ENGINES,
    Cluster,
    ContainerSpec,
    Deploy,
    Node,
    Secret,
    Spec,
    Ssh,
    Task,
    Torchrun,
    keys_of,
    section_of,
)

PROGRAM_KEYS = ("module", "script", "command")
SAYS_NOTHING = (
    "main",
    "train",
    "run",
    "start",
    "__main__",
    "src",
    "scripts",
    "code",
    "project",
    "",
)
"""Names of programs and of folders that do not tell one project from another."""

REFUSED_ELSEWHERE = "max_restarts"
"""The option of torchrun that any static rendezvous refuses."""


@dataclass(frozen=True)
class Context:
    """What a configuration was composed of, and where."""

    cluster: str  # the name of its YAML file, as that of the task
    task: str
    cwd: str
    environ: Mapping[str, str]
    node_words: Sequence[tuple[str, str]] = ()  # nodes and keys that the command line changed
    for_contact: bool = False  # whether the hosts are only to be reached: there is no task


def resolve(values: Mapping[str, Any], context: Context, problems: Problems) -> Spec:
    """Return the `Spec` of composed values; raise ConfigError with every problem."""
    read = read_section(problems, "", Spec, values)
    known = {problem.subject for problem in problems}
    across = Problems()
    cluster: Cluster = replace(read.get("cluster") or Cluster(), name=context.cluster)
    task: Task = replace(read.get("task") or Task(), name=context.task)
    cluster = _with_paths(across, cluster, context)
    relaunches = read["relaunch"].max > 0 if "relaunch" in read else False
    if cluster.scheduler == "slurm":
        environ = context.environ
        cluster, task, all_nodes = read_slurm(across, cluster, task, environ, spares=relaunches)
    else:
        all_nodes = read_nodes(across, cluster, context.node_words)
    nodes = tuple(all_nodes.values())
    spares: tuple[Node, ...] = ()
    min_nodes: int | None = None
    if cluster.scheduler == "direct" or cluster.slurm.job_id:
        nodes, spares, min_nodes = select_nodes(across, cluster, task, all_nodes)
    if context.for_contact:
        task = replace(task, kind="command", target="true")
    else:
        task = _with_program(across, task)
    cluster, secret_values = _with_environment(across, cluster, task, nodes, context)
    container: ContainerSpec = _with_engine(across, read.get("container", ContainerSpec()))
    if container:
        nodes = tuple(replace(node, python=container.python) for node in nodes)
        spares = tuple(replace(node, python=container.python) for node in spares)
    deploy: Deploy = read.get("deploy") or Deploy()
    pushes = not (values.get("cluster") or {}).get("project")
    read.update(
        cluster=cluster,
        task=task,
        container=container,
        deploy=replace(deploy, enabled=pushes),
    )
    spec = Spec(
        **read,
        nodes=nodes,
        spares=spares,
        min_nodes=min_nodes,
        secrets=secret_values,
        program=this_program(),
    )
    _check_across(across, spec)
    # What follows from a value that is not legal is no problem of its own.
    problems += [problem for problem in across if problem.subject not in known]
    problems.raise_any()
    return spec


def _check_across(problems: Problems, spec: Spec) -> None:
    """Report what no key says by itself."""
    _check_rendezvous(problems, spec)
    if spec.task.without_torchrun:
        _check_without_torchrun(problems, spec)
    _check_relaunch(problems, spec)
    check_decides(problems, spec)
    check_scheduler(problems, spec)
    _check_debug(problems, spec)
    check_targets(problems, spec.notify, spec.secrets)
    checks = tuple(all_checks()) if spec.skip_checks else ()
    for name in spec.skip_checks:
        choose(problems, "skip_checks", name, checks)
    if spec.task.args_expand and spec.task.entry != "plain":
        message = f"{spec.task.entry} decides on the ranks after the plan is made"
        hint = "set task.entry=plain, or leave it out: programs read RANK from their environment"
        problems.report("task.args_expand", message, hint)


def unknown_keys(
    values: Mapping[str, Any], section: type = Spec, where: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each key that there is not."""
    legal = keys_of(section)
    for key, value in values.items():
        nested = section_of(legal[key]) if key in legal else None
        if key not in legal:
            yield no_such_key(where, key, list(legal))
        elif nested and isinstance(value, Mapping):
            yield from unknown_keys(value, nested, f"{where}.{key}" if where else key)


def no_such_key(where: str, key: str, legal: Sequence[str]) -> Problem:
    """Return the problem of an unknown key, with the section where it may belong."""
    problem = unknown_key(where, key, legal)
    if problem.hint or problem.message.startswith("is gone") or where not in ("", "task"):
        return problem
    sections = {name: section_of(option) for name, option in keys_of(Spec).items()}
    has_key = [f"{name}.{key}" for name, each in sections.items() if each and key in keys_of(each)]
    hint = f"if it is for the program: task.args.{key}=…"
    if has_key:
        hint = f"did you mean {join_or(has_key)}?"
    return replace(problem, hint=hint)


def _with_paths(problems: Problems, cluster: Cluster, context: Context) -> Cluster:
    """Return a cluster whose files here are there and have absolute paths.

    The record is read in other folders, too.
    """
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
    return replace(cluster, ssh=replace(ssh, **changed), project=_project(cluster.project, context))


def _project(project: str, context: Context) -> str:
    """Return the folder of the code on the hosts: by default $PWD, symbolic links kept."""
    if project.startswith("~"):
        return project
    cwd = Path(context.cwd)
    shell_cwd = Path(context.environ.get("PWD", ""))
    if shell_cwd.is_absolute() and shell_cwd.exists() and shell_cwd.samefile(cwd):
        cwd = shell_cwd
    return str(cwd / project)


def _with_program(problems: Problems, task: Task) -> Task:
    """Return a task with the words of its one program."""
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
    return replace(task, target=target, words=words)


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program of a task without a YAML file.

    That of its folder or package, where its own is one that any program may have.
    """
    if task.get("module"):
        parts = str(task["module"]).split(".")
    elif task.get("script"):
        script = PurePath(os.path.normpath(Path.cwd() / str(task["script"])))
        parts = [*script.parent.parts, script.stem]
    else:
        command = task.get("command") or ""
        words = command if isinstance(command, list) else str(command).split()
        parts = [PurePath(str(words[0])).stem if words else ""]
    telling = (part for part in reversed(parts) if part.strip("/").lower() not in SAYS_NOTHING)
    return next(telling, parts[-1]) or "task"


def new_run_id(task: str) -> str:
    """Return a new run id, `MMDD-HHMM-TASK-xxxx`, with 1.7 million values of xxxx."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[:40].strip("-") or "task"
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    return f"{datetime.now().astimezone():%m%d-%H%M}-{slug}-{suffix}"


def _with_environment(
    problems: Problems, cluster: Cluster, task: Task, nodes: Sequence[Node], context: Context
) -> tuple[Cluster, dict[str, Secret]]:
    """Return a cluster with the variables that are copied from here, and the secret ones."""
    passed = _copied(problems, "cluster.pass_env", cluster.pass_env, context.environ)
    secret = _copied(problems, "cluster.secrets", cluster.secrets, context.environ)
    recorded: dict[str, Collection[str]] = {
        "cluster.pass_env": passed,
        "cluster.env": _set_names(cluster.env),
        "task.env": _set_names(task.env),
        **{f"cluster.nodes.{node.name}.env": _set_names(node.env) for node in nodes},
    }
    for place, names in recorded.items():
        for name in sorted(set(secret).intersection(names)):
            message = f"{name} is a secret (cluster.secrets) and would be recorded here"
            problems.report(place, message)
    env = {**passed, **cluster.env}
    return replace(cluster, env=env), {name: Secret(text) for name, text in secret.items()}


def _set_names(env: Mapping[str, str | None]) -> list[str]:
    return [name for name, value in env.items() if value is not None]


def _copied(
    problems: Problems, where: str, names: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    for name in names:
        if name not in environ:
            hint = f"export {name}=… first, or take it out of {where}"
            problems.report(where, f"{name} is not set in this shell's environment", hint)
    return {name: environ[name] for name in names if name in environ}


def _with_engine(problems: Problems, container: ContainerSpec) -> ContainerSpec:
    """Return the container that ranks run in, if its engine has what the keys ask for."""
    options = keys_of(ContainerSpec)
    unset = ContainerSpec()
    changed = [name for name in options if getattr(container, name) != getattr(unset, name)]
    name = container.engine
    if not name:
        for key in changed:
            hint = f"choose one: container={' or container='.join(ENGINES)}"
            problems.report(f"container.{key}", "ranks run in no container without an engine", hint)
        return unset
    if not container.image:
        hint = "name one, such as container.image=pytorch/pytorch:latest"
        problems.report("container.image", f"{name} needs an image", hint)
    if container.shm_size and container.ipc == "host":
        message = "the host's own /dev/shm is used, and its size is not ours to set"
        hint = "leave it out, or set container.ipc=private"
        problems.report("container.shm_size", message, hint)
    for message, hint in extra_problems(name, container.extra):
        problems.report("container.extra", message, hint)
    engine = engine_of(container)
    for key in changed:
        # Nothing is pulled there anyway.
        if key in engine.IGNORED_KEYS and getattr(container, key) != "never":
            hint = "leave it out, or choose docker or podman"
            problems.report(f"container.{key}", f"{name} has no such setting of its own", hint)
    for mount in container.mounts if engine.SPLITS_MOUNTS else ():
        if "," in f"{mount.source}{mount.target}":
            message = f"{mount.source}:{mount.target}: {name} takes no path with a comma"
            hint = "mount a link to it whose name has none"
            problems.report("container.mounts", message, hint)
    return replace(container, program=container.program or name)


def _check_rendezvous(problems: Problems, spec: Spec) -> None:
    """Report a rendezvous at which these nodes cannot meet."""
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


def _check_without_torchrun(problems: Problems, spec: Spec) -> None:
    """Report the settings that a task without torchrun cannot have."""
    entry = f"entry {spec.task.entry}"
    # A number of ranks above 1 counts where a node has it of its own.
    harmless = (None, 1, spec.cluster.nproc_per_node)
    for node in (*spec.nodes, *spec.spares) if spec.task.is_plain else ():
        if node.nproc_per_node not in harmless:
            message = "entry plain starts one process per node, which may start its own workers"
            hint = "set it to 1 or auto, or task.entry=torchrun"
            problems.report(f"cluster.nodes.{node.name}.nproc_per_node", message, hint)
    if spec.rendezvous.backend != "static":
        message = f"{spec.rendezvous.backend} is torchrun's, and {entry} starts none"
        hint = "choose rendezvous=static, or task.entry=torchrun"
        problems.report("rendezvous.backend", message, hint)
    for name, default in dataclasses.asdict(Torchrun()).items():
        if name != REFUSED_ELSEWHERE and getattr(spec.torchrun, name) != default:
            hint = "leave it out, or set task.entry=torchrun"
            problems.report(f"torchrun.{name}", f"{entry} starts no torchrun", hint)


def _check_relaunch(problems: Problems, spec: Spec) -> None:
    """Report what is to be relaunched or restarted, and cannot be."""
    max_restarts = spec.torchrun.max_restarts
    if spec.rendezvous.backend == "static" and max_restarts:
        message = "with a static rendezvous torchrun cannot restart the ranks"
        hint = f"set relaunch.max={max_restarts} in its place, or choose rendezvous=c10d"
        problems.report("torchrun.max_restarts", message, hint)
    if spec.watch.action == "restart" and not spec.relaunch.max:
        hint = "set relaunch.max to 1 or more, or watch.action=stop"
        problems.report("watch.action", "restart needs a number of relaunches", hint)


def _check_debug(problems: Problems, spec: Spec) -> None:
    """Report a rank that cannot be debugged: it has to be Python, on a node that we log in to."""
    if spec.debug.rank is None:
        return
    if spec.task.kind == "command":
        message = "debugpy starts Python programs, and task.command may be any program"
        problems.report("debug.rank", message, "name it by task.script or task.module")
    if spec.slurm:
        message = "a debugger's port on a node of a job would be open to everyone in its network"
        hint = "debug it without slurm: cluster.scheduler=direct"
        problems.report("debug.rank", message, hint)


def check_targets(
    problems: Problems, targets: Sequence[str], secret_values: Mapping[str, Secret]
) -> None:
    """Report targets that cannot be told, or would put a secret on record."""
    if len(targets) > MAX_TARGETS:
        problems.report("notify", f"names {len(targets)} targets; {MAX_TARGETS} are the most")
    for index, target in enumerate(targets):
        where = f"notify[{index}]" if len(targets) > 1 else "notify"
        if problem := target_problem(target):
            hint = "a command that /bin/sh runs with the message as its standard input"
            problems.report(where, problem, hint)
            continue
        for name, secret in secret_values.items():
            text = secret.reveal()
            if len(text) >= MIN_HIDDEN_CHARS and text in target:
                message = f"holds the value of {name}, a secret, and would be recorded"
                problems.report(where, message, f"write ${name} in its place, in single quotes")
