"""Spec builder: composed values become a `Spec`, with every check that needs no host."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.checks.base import all_checks
from runner.config import schema
from runner.config.nodes import check_decides, read_nodes, select_nodes
from runner.config.schema.cluster import ClusterConfig, SshConfig
from runner.config.schema.container import ContainerConfig
from runner.config.slurm import check_slurm, read_slurm
from runner.config.task import check_without_torchrun, read_debug, read_task
from runner.config.validation import SpecInputs, Validator, scalar_text, suggest
from runner.core.errors import ConfigError, Problem
from runner.core.model.container import ContainerSpec, Mount
from runner.core.model.slurm import SlurmSpec
from runner.core.model.spec import (
    MAX_BACKOFF_S,
    Deploy,
    DryRun,
    Node,
    Relaunch,
    Rendezvous,
    Secret,
    Spec,
    Ssh,
    Task,
    Torchrun,
)
from runner.core.notification.target import MAX_TARGETS, MIN_HIDDEN_CHARS, target_problem
from runner.core.planning.container.base import ENGINES, engine_of
from runner.core.planning.container.extra import extra_problems
from runner.core.shell import expand_home, this_program

NOTIFY = "notify"
NOTIFY_HINT = "a command that /bin/sh runs with the message as its standard input"
ULIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc"),
    *("rss", "rtprio", "rttime", "sigpending", "stack"),
)
"""The names of limits that engines know."""


def build_spec(inputs: SpecInputs, problems: list[Problem]) -> tuple[Spec, dict[str, Any]]:
    """Return the `Spec`, and the fields of `LaunchRequest` that are options of the run.

    Raises a ConfigError with every problem, those found before included.
    """
    validator, values = Validator(problems), inputs.values
    cluster = validator.section("cluster", values["cluster"], ClusterConfig)
    nodes, spares, min_nodes, slurm = _read_nodes(validator, inputs, cluster)
    torchrun = Torchrun(**validator.section("torchrun", values["torchrun"], schema.TorchrunConfig))
    nnodes = slurm.nnodes if slurm else len(nodes)
    rendezvous = _read_rendezvous(validator, values["rendezvous"], nnodes, min_nodes)
    task = read_task(validator, inputs)
    if task.without_torchrun:
        check_without_torchrun(validator, values, task, (*nodes, *spares), rendezvous)
    env, secrets = _read_environment(validator, inputs, cluster["env"], nodes, task)
    top = validator.section("", values, schema.RunnerConfig)
    container = _read_container(validator, values["container"])
    deploy = validator.section("deploy", values["deploy"], schema.DeployConfig)
    spec = Spec(
        run_id=top["run_id"],
        cluster=inputs.cluster,
        nodes=nodes,
        task=task,
        slurm=slurm,
        master_port=cluster["master_port"],
        backend=cluster["backend"],
        rendezvous=rendezvous,
        torchrun=torchrun,
        relaunch=Relaunch(
            **validator.section("relaunch", values["relaunch"], schema.RelaunchConfig)
        ),
        min_nodes=min_nodes,
        spares=spares,
        ssh=_read_ssh(validator, values["cluster"]["ssh"], inputs.cwd),
        python=container.python if container else cluster["python"],
        host_python=cluster["host_python"],
        setup=cluster["setup"],
        project=_read_project(validator, cluster["project"], inputs),
        workdir=cluster["workdir"],
        deploy=Deploy(cluster["project"] is None, **deploy),
        container=container,
        pull_outputs=top["pull_outputs"] == "auto",
        skip_checks=_read_skipped(validator, top["skip_checks"]),
        env=env,
        secrets=secrets,
        **{name: top[name] for name in ("grace_s", "lost_s", "disconnect_s")},
        **_read_watch(validator, values, top["sample_s"]),
        debug=read_debug(validator, values["debug"], task, slurm),
        detach=bool(values["detach"]),
        notify=check_targets(validator, top["notify"], secrets),
        program=this_program(),
    )
    _check_relaunch(validator, spec)
    check_decides(validator, spec)
    check_slurm(validator, spec)
    options = _read_options(validator, inputs, top)
    if problems:
        raise ConfigError(problems)
    return spec, options


def _read_skipped(validator: Validator, value: object) -> tuple[str, ...]:
    """Return the names of checks to leave out."""
    names = validator.text_list("skip_checks", value)
    checks = tuple(all_checks()) if names else ()
    return tuple(validator.choice("skip_checks", name, checks) for name in names)


def _read_nodes(
    validator: Validator, inputs: SpecInputs, cluster: Mapping[str, Any]
) -> tuple[tuple[Node, ...], tuple[Node, ...], int | None, SlurmSpec | None]:
    """Return the nodes, the spare ones, the fewest of a run, and what a job asks of Slurm."""
    if cluster["scheduler"] == "slurm":
        login, slurm, min_nodes = read_slurm(validator, inputs, cluster)
        return (login,), (), min_nodes, slurm
    all_nodes = read_nodes(validator, inputs, cluster)
    return *select_nodes(validator, inputs, all_nodes), None


def _read_rendezvous(
    validator: Validator,
    values: Mapping[str, Any],
    nnodes: int,
    min_nodes: int | None,
) -> Rendezvous:
    """Return the rendezvous, if these nodes can meet at it."""
    rendezvous = Rendezvous(**validator.section("rendezvous", values, schema.RendezvousConfig))
    backend = rendezvous.backend
    endpoint = rendezvous.endpoint
    if backend == "standalone" and nnodes > 1:
        message = f"standalone is for one node alone, and {nnodes} are to be used"
        hint = "choose rendezvous=static or c10d, or set task.nnodes=1"
        validator.add("rendezvous.backend", message, hint)
    if min_nodes is not None and backend in ("static", "standalone"):
        message = f"with {backend} no node can join or leave, so a range of nodes makes no sense"
        hint = "choose rendezvous=c10d or etcd, or one number of nodes"
        validator.add("task.nnodes", message, hint)
    if rendezvous.uses_etcd and not endpoint:
        message = f"{backend} needs an etcd server"
        validator.add("rendezvous.endpoint", message, "set rendezvous.endpoint=HOST:PORT")
    if endpoint and not rendezvous.uses_etcd:
        hint = "it is for rendezvous=etcd"
        validator.add("rendezvous.endpoint", f"{backend} takes none", hint)
    return rendezvous


def _read_container(validator: Validator, values: Mapping[str, Any]) -> ContainerSpec:
    """Return the container that ranks run in, if there is one."""
    read = validator.section("container", values, ContainerConfig)
    engine = read["engine"]
    if not engine:
        unset = dataclasses.asdict(ContainerConfig())
        for key in (key for key in read if values[key] != unset[key]):
            hint = f"choose one: container={' or container='.join(ENGINES)}"
            validator.add(f"container.{key}", "ranks run in no container without an engine", hint)
        return ContainerSpec()
    _check_image(validator, values, read)
    if read["shm_size"] and not re.fullmatch(r"[1-9]\d*[bkmg]?", read["shm_size"]):
        message = f"must be a number with b, k, m or g, not {read['shm_size']!r}"
        validator.add("container.shm_size", message, "such as 16g")
    if read["shm_size"] and read["ipc"] == "host":
        message = "the host's own /dev/shm is used, and its size is not ours to set"
        validator.add("container.shm_size", message, "leave it out, or set container.ipc=private")
    for message, hint in extra_problems(engine, read["extra"]):
        validator.add("container.extra", message, hint)
    container = ContainerSpec(
        engine=engine,
        program=read["program"] or engine,
        image=read["image"],
        python=read["python"],
        mounts=tuple(_read_mounts(validator, read["mounts"])),
        shm_size=read["shm_size"],
        host_ipc=read["ipc"] == "host",
        host_user=read["user"] == "login",
        ulimits=_read_ulimits(validator, read["ulimits"]),
        pull=read["pull"],
        image_entrypoint=read["entrypoint"] == "image",
        extra=read["extra"],
        prepare_timeout_s=read["prepare_timeout_s"],
    )
    _check_engine(validator, container, read)
    return container


def _check_engine(validator: Validator, container: ContainerSpec, read: Mapping[str, Any]) -> None:
    """Check that the engine of a container has what the keys ask of it."""
    name, engine = container.engine, engine_of(container)
    defaults = dataclasses.asdict(ContainerConfig())
    unset = validator.section("container", defaults, ContainerConfig)
    for key in engine.IGNORED_KEYS:
        if read[key] not in (unset[key], "never"):  # nothing is pulled anyway
            hint = "leave it out, or choose docker or podman"
            validator.add(f"container.{key}", f"{name} has no such setting of its own", hint)
    for mount in container.mounts if engine.SPLITS_MOUNTS else ():
        if "," in mount.source + mount.target:
            message = f"{mount.source}:{mount.target}: {name} takes no path with a comma"
            validator.add("container.mounts", message, "mount a link to it whose name has none")


def _check_image(validator: Validator, values: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Check that a container has an image; a bad name of one has been reported."""
    if values["image"] is None:
        hint = "name one, such as container.image=pytorch/pytorch:latest"
        validator.add("container.image", f"{read['engine']} needs an image", hint)
    for key in ("image", "program"):
        if read[key].startswith("-"):
            validator.add(f"container.{key}", f"{read[key]!r} begins with a '-'")


def _read_mounts(validator: Validator, texts: Sequence[str]) -> Iterator[Mount]:
    """Yield what SOURCE:TARGET[:ro] says; both are absolute, so that no engine takes a name."""
    targets: set[str] = set()
    for text in texts:
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        is_absolute = source.startswith("/") and target.startswith("/")
        if not is_absolute or mode not in ("", "ro", "rw"):
            message = f"{text!r} is not SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths"
            validator.add("container.mounts", message, "such as /data:/data:ro")
        elif posixpath.normpath(target) in {*targets, "/"}:
            place = posixpath.normpath(target)
            taken = "two sources have that place" if place in targets else "it would hide the image"
            validator.add("container.mounts", f"{text!r}: {taken}")
        targets.add(posixpath.normpath(target))
        yield Mount(source, target, read_only=mode == "ro")


def _read_ulimits(validator: Validator, values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        validator.add(
            "container.ulimits", f"must be a mapping such as {{nofile: 65536}}, not {values!r}"
        )
        return {}
    limits = {str(name): str(value) for name, value in values.items()}
    for name, limit in limits.items():
        soft, _, hard = limit.partition(":")
        if name not in ULIMITS:
            hint = suggest(name, ULIMITS)
            validator.add(f"container.ulimits.{name}", "there is no such limit", hint)
        elif not re.fullmatch(r"-1|\d{1,18}(:\d{1,18})?", limit) or int(soft) > int(hard or soft):
            message = f"must be a number, SOFT:HARD, or -1 for none, not {limit!r}"
            validator.add(f"container.ulimits.{name}", message)
    return limits


def _read_watch(validator: Validator, values: Mapping[str, Any], sample_s: float) -> dict[str, Any]:
    """Return how the ranks and their hosts are watched: fields of `Spec`."""
    watch = validator.section("watch", values["watch"], schema.WatchConfig)
    progress = validator.section("progress", values["progress"], schema.ProgressConfig)
    return {
        "sample_s": sample_s,
        "stall_s": watch["stall_s"],
        "stop_on_stall": watch["action"] != "report",
        "relaunch_on_stall": watch["action"] == "restart",
        "metrics": watch["metrics"],
        "stacks": watch["stacks"] == "auto",
        "progress_pattern": progress["pattern"],
    }


def _check_relaunch(validator: Validator, spec: Spec) -> None:
    """Report what is to be relaunched or restarted, and cannot be."""
    max_restarts = spec.torchrun.max_restarts
    if spec.rendezvous.backend == "static" and max_restarts:
        message = "with a static rendezvous torchrun cannot restart the ranks"
        hint = f"set relaunch.max={max_restarts} in its place, or choose rendezvous=c10d"
        validator.add("torchrun.max_restarts", message, hint)
    if spec.relaunch.backoff_s > MAX_BACKOFF_S:
        message = f"must be at most {MAX_BACKOFF_S:g} seconds, not {spec.relaunch.backoff_s:g}"
        validator.add("relaunch.backoff_s", message)
    if spec.relaunch_on_stall and not spec.relaunch.max:
        message, hint = "restart needs a number of relaunches", "set relaunch.max to 1 or more"
        validator.add("watch.action", message, f"{hint}, or watch.action=stop")


def _read_options(
    validator: Validator, inputs: SpecInputs, top: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of the launch: fields of `LaunchRequest`."""
    dry_run, plan_as_json = _read_dry_run(validator, top["dry_run"])
    return {
        "dry_run": dry_run,
        "plan_as_json": plan_as_json,
        "run_dir": Path(inputs.cwd, expand_home(top["run_dir"])),
        "ui": top["ui"],
        "console_ranks": top["console_ranks"],
    }


def _read_dry_run(validator: Validator, value: object) -> tuple[DryRun, bool]:
    """Return what to do in place of a launch, and whether the plan is printed as JSON."""
    words = [scalar_text(word) for word in (value if isinstance(value, list) else [value])]
    modes = [word for word in words if word != "json"] or ["true"]
    legal = [mode.value for mode in DryRun]
    if len(modes) > 1 or (modes == ["false"] and len(words) > 1) or not words:
        validator.add("dry_run", f"must be one mode, or [offline, json], not {value!r}")
        return DryRun.ON, False
    if modes[0] not in legal:
        modes = [validator.choice("dry_run", modes[0], [*legal, "json"])]
    return DryRun(modes[0]), "json" in words


def _read_ssh(validator: Validator, values: Mapping[str, Any], cwd: str) -> Ssh:
    ssh = validator.section("cluster.ssh", values, SshConfig)
    for name, usual in (("key", None), ("config", Ssh().config)):
        file = Path(cwd, expand_home(ssh[name] or ""))
        if ssh[name] not in ("", usual) and (file.is_dir() or not file.exists()):
            validator.add(f"cluster.ssh.{name}", f"there is no file {ssh[name]}")
    for name in ("key", "config", "known_hosts"):
        if ssh[name] and not ssh[name].startswith("~"):
            ssh[name] = str(Path(cwd, ssh[name]))  # the record is read in other folders, too
    ssh["jump"] = tuple(hop.strip() for word in ssh["jump"] for hop in word.split(","))
    return Ssh(**ssh)


def _read_project(validator: Validator, value: object, inputs: SpecInputs) -> str:
    """Return the folder of the code on the hosts: by default $PWD, symbolic links kept."""
    project = "" if value is None else validator.path("cluster.project", value)
    if project.startswith("~"):
        return project
    cwd, shell_cwd = Path(inputs.cwd), Path(inputs.environ.get("PWD", ""))
    if shell_cwd.is_absolute() and shell_cwd.exists() and shell_cwd.samefile(cwd):
        cwd = shell_cwd
    return str(cwd / project)


def _read_environment(
    validator: Validator,
    inputs: SpecInputs,
    env: dict[str, str | None],
    nodes: Sequence[Node],
    task: Task,
) -> tuple[dict[str, str | None], dict[str, Secret]]:
    """Return the environment of all ranks, and its secret part."""
    cluster = inputs.values["cluster"]
    passed = _copy_variables(validator, "cluster.pass_env", cluster["pass_env"], inputs.environ)
    secrets = _copy_variables(validator, "cluster.secrets", cluster["secrets"], inputs.environ)
    recorded_envs: dict[str, Mapping[str, str | None]] = {
        "cluster.pass_env": passed,
        "cluster.env": env,
        "task.env": task.env,
        **{f"cluster.nodes.{node.name}.env": node.env for node in nodes},
    }
    for place, recorded in recorded_envs.items():
        for name in sorted(name for name in secrets if recorded.get(name) is not None):
            validator.add(place, f"{name} is a secret (cluster.secrets) and would be recorded here")
    return {**passed, **env}, {name: Secret(text) for name, text in secrets.items()}


def _copy_variables(
    validator: Validator, where: str, value: object, environ: Mapping[str, str]
) -> dict[str, str]:
    names = validator.text_list(where, value)
    for name in names:
        validator.check_env_name(where, name)
        if name not in environ:
            hint = f"export {name}=… first, or take it out of {where}"
            validator.add(where, f"{name} is not set in this shell's environment", hint)
    return {name: environ[name] for name in names if name in environ}


def check_targets(
    validator: Validator, targets: Sequence[str], secrets: Mapping[str, Secret]
) -> tuple[str, ...]:
    """Return the targets; report those that cannot be told, or would put a secret on record."""
    if len(targets) > MAX_TARGETS:
        validator.add(NOTIFY, f"names {len(targets)} targets; {MAX_TARGETS} are the most")
    for index, target in enumerate(targets):
        where = f"{NOTIFY}[{index}]" if len(targets) > 1 else NOTIFY
        if problem := target_problem(target):
            validator.add(where, problem, NOTIFY_HINT)
            continue
        for name, secret in secrets.items():
            text = secret.reveal()
            if len(text) >= MIN_HIDDEN_CHARS and text in target:
                message = f"holds the value of {name}, a secret, and would be recorded"
                validator.add(where, message, f"write ${name} in its place, in single quotes")
    return tuple(targets)
