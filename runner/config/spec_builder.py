"""Spec builder: composed values become a `Spec`, with every check that needs no host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from runner.checks.base import all_checks
from runner.config.arguments import render_arguments, split_words
from runner.config.entry import ENTRIES, check_plain, local_rank_words
from runner.config.nodes import read_nodes, select_nodes
from runner.config.rendezvous import read_relaunch, read_rendezvous, read_torchrun
from runner.config.validation import SpecInputs, Validator, join_or, scalar_text
from runner.core.errors import ConfigError, Problem
from runner.core.model.launch_request import DryRun
from runner.core.model.spec import Deploy, Node, Secret, Spec, Ssh, Task

PROGRAM_KEYS = ("module", "script", "command")
BACKENDS = ("auto", "nccl", "gloo")
PULL_MODES = ("auto", "never")
HOST_KEY_MODES = ("strict", "accept-new")
STALL_ACTIONS = ("report", "stop", "restart")
STACK_MODES = ("auto", "never")


def build_spec(inputs: SpecInputs, problems: list[Problem]) -> tuple[Spec, dict[str, Any]]:
    """Return the `Spec`, and the fields of `LaunchRequest` that are options of the run.

    Args:
        inputs: The composed values.
        problems: Problems found before, raised together with those found here.

    Raises:
        ConfigError: With every problem.
    """
    validator = Validator(problems)
    values, cluster = inputs.values, inputs.values["cluster"]
    nodes, spares, min_nodes = select_nodes(validator, inputs, read_nodes(validator, inputs))
    action = validator.choice("watch.action", values["watch"]["action"], STALL_ACTIONS)
    torchrun_options = read_torchrun(validator, values["torchrun"])
    rendezvous = read_rendezvous(validator, values["rendezvous"], nodes, min_nodes)
    task = _read_task(validator, inputs)
    if task.is_plain:
        check_plain(validator, values, (*nodes, *spares), rendezvous)
    env, secrets = _read_environment(validator, inputs, nodes, task)
    spec = Spec(
        run_id=validator.run_id("run_id", values["run_id"]),
        cluster=inputs.cluster,
        nodes=nodes,
        task=task,
        master_port=validator.ports("cluster.master_port", cluster["master_port"]),
        backend=validator.choice("cluster.backend", cluster["backend"], BACKENDS),
        rendezvous=rendezvous,
        torchrun=torchrun_options,
        relaunch=read_relaunch(
            *(validator, values["relaunch"], rendezvous, torchrun_options),
            relaunch_on_stall=action == "restart",
        ),
        min_nodes=min_nodes,
        spares=spares,
        ssh=_read_ssh(validator, cluster["ssh"], inputs.cwd),
        python=validator.line("cluster.python", cluster["python"]),
        host_python=validator.line("cluster.host_python", cluster["host_python"]),
        setup=validator.text_list("cluster.setup", cluster["setup"]),
        project=_read_project(validator, cluster["project"], inputs),
        workdir=validator.line("cluster.workdir", cluster["workdir"]),
        deploy=_read_deploy(validator, values),
        pull_outputs=validator.choice("pull_outputs", values["pull_outputs"], PULL_MODES) == "auto",
        skip_checks=_read_skip_checks(validator, values),
        env=env,
        secrets=secrets,
        grace_s=validator.seconds("grace_s", values["grace_s"]),
        lost_s=validator.seconds("lost_s", values["lost_s"]),
        disconnect_s=validator.seconds_or("never", "disconnect_s", values["disconnect_s"]),
        stall_s=validator.seconds_or("off", "watch.stall_s", values["watch"]["stall_s"]),
        stop_on_stall=action != "report",
        relaunch_on_stall=action == "restart",
        metrics=validator.outputs("watch.metrics", values["watch"]["metrics"]),
        stacks=validator.choice("watch.stacks", values["watch"]["stacks"], STACK_MODES) == "auto",
        detach=bool(values["detach"]),
    )
    options = _read_options(validator, inputs)
    if problems:
        raise ConfigError(problems)
    return spec, options


def _read_skip_checks(validator: Validator, values: Mapping[str, Any]) -> tuple[str, ...]:
    names = validator.text_list("skip_checks", values["skip_checks"])
    return tuple(validator.choice("skip_checks", name, tuple(all_checks())) for name in names)


def _read_options(validator: Validator, inputs: SpecInputs) -> dict[str, Any]:
    """Return the options of the launch: fields of `LaunchRequest`."""
    values = inputs.values
    run_dir = Path(validator.line("run_dir", values["run_dir"])).expanduser()
    dry_run, plan_as_json = _read_dry_run(validator, values["dry_run"])
    return {
        "dry_run": dry_run,
        "plan_as_json": plan_as_json,
        "run_dir": Path(inputs.cwd, run_dir),
        "ui": validator.choice("ui", values["ui"], ("auto", "plain")),
        "console_ranks": validator.ranks("console_ranks", values["console_ranks"]),
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


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program of a task without a YAML file."""
    if task.get("module"):
        return str(task["module"]).rpartition(".")[2]
    command = task.get("command") or ""
    words = command if isinstance(command, list) else str(command).split()
    program = task.get("script") or (words[0] if words else "")
    return PurePath(str(program)).stem or "task"


def _read_ssh(validator: Validator, ssh: Mapping[str, Any], cwd: str) -> Ssh:
    key = validator.optional_line("cluster.ssh.key", ssh["key"])
    if key and not Path(cwd, Path(key).expanduser()).is_file():
        validator.add("cluster.ssh.key", f"there is no file {key}")
    jump = validator.text_list("cluster.ssh.jump", ssh["jump"])
    return Ssh(
        user=validator.optional_line("cluster.ssh.user", ssh["user"]),
        port=validator.port("cluster.ssh.port", ssh["port"]),
        key=key,
        config=validator.line("cluster.ssh.config", ssh["config"]),
        jump=tuple(hop.strip() for word in jump for hop in word.split(",")),
        known_hosts=validator.line("cluster.ssh.known_hosts", ssh["known_hosts"]),
        host_keys=validator.choice("cluster.ssh.host_keys", ssh["host_keys"], HOST_KEY_MODES),
        connect_timeout=validator.seconds("cluster.ssh.connect_timeout", ssh["connect_timeout"]),
    )


def _read_project(validator: Validator, value: object, inputs: SpecInputs) -> str:
    """Return the folder of the code on the hosts: by default $PWD, symbolic links kept."""
    project = validator.optional_line("cluster.project", value)
    if project and project.startswith("~"):
        return project
    shell_cwd = Path(inputs.environ.get("PWD", ""))
    is_same_folder = (
        shell_cwd.is_absolute() and shell_cwd.exists() and shell_cwd.samefile(inputs.cwd)
    )
    return str((shell_cwd if is_same_folder else Path(inputs.cwd)) / (project or ""))


def _read_deploy(validator: Validator, values: Mapping[str, Any]) -> Deploy:
    """Return the settings of a push; with `cluster.project` nothing is pushed."""
    cluster, bounds = values["cluster"], values["deploy"]
    return Deploy(
        enabled=cluster["project"] is None,
        max_mb=validator.integer("deploy.max_mb", bounds["max_mb"], minimum=1),
        keep=validator.integer("deploy.keep", bounds["keep"], minimum=0),
    )


def _read_environment(
    validator: Validator, inputs: SpecInputs, nodes: Sequence[Node], task: Task
) -> tuple[dict[str, str], dict[str, Secret]]:
    """Return the environment of all ranks, and its secret part."""
    cluster = inputs.values["cluster"]
    passed = _copy_variables(validator, "cluster.pass_env", cluster["pass_env"], inputs.environ)
    secrets = _copy_variables(validator, "cluster.secrets", cluster["secrets"], inputs.environ)
    env = validator.env("cluster.env", cluster["env"])
    recorded_envs = {"cluster.pass_env": passed, "cluster.env": env, "task.env": task.env}
    recorded_envs |= {f"cluster.nodes.{node.name}.env": node.env for node in nodes}
    for place, names in recorded_envs.items():
        for name in secrets.keys() & names.keys():
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


def _read_task(validator: Validator, inputs: SpecInputs) -> Task:
    task = inputs.values["task"]
    program_keys = [key for key in PROGRAM_KEYS if task[key] not in (None, "", [])]
    if not program_keys:
        keys = join_or([f"task.{key}" for key in PROGRAM_KEYS])
        validator.add("task", f"there is no program; set {keys}", "such as task.script=train.py")
    if len(program_keys) > 1:
        message = f"there is more than one program: {' and '.join(program_keys)}"
        validator.add("task", message, f"task.{program_keys[0]}=null removes one")
    kind = program_keys[0] if program_keys else "script"
    target, *words = _read_program(validator, kind, task[kind])
    entry = validator.choice("task.entry", task["entry"], ENTRIES)
    local_rank = local_rank_words(validator, task["local_rank_arg"], entry)
    return Task(
        name=inputs.task,
        kind=kind,
        target=target,
        args=(*words, *local_rank, *render_arguments(validator, task["args"], task["args_style"])),
        env=validator.env("task.env", task["env"]),
        outputs=validator.outputs("task.outputs", task["outputs"]),
        entry=entry,
    )


def _read_program(validator: Validator, kind: str, value: object) -> list[str]:
    where = f"task.{kind}"
    if kind == "command":
        words = validator.text_list(
            where, value if isinstance(value, list) else split_words(validator, where, value)
        )
        return list(words) or [""]
    text = validator.optional_line(where, value) or ""
    is_module_name = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text) and not text.endswith(".py")
    if kind == "module" and not is_module_name:
        message = f"{text!r} is no module name such as package.train"
        validator.add(where, message, f"a file is task.script={text}")
    return [text]
