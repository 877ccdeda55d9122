"""From composed values to a `Spec`: every check that needs no host, all problems at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from runner.checks.registry import CHECKS
from runner.config.arguments import arguments, split_words
from runner.config.entry import ENTRIES, check_plain, local_rank_words
from runner.config.inputs import Asked
from runner.config.nodes import all_nodes, chosen
from runner.config.rendezvous import read_rendezvous, read_torchrun, relaunch
from runner.config.validation import Checker, either, scalar
from runner.core.errors import ConfigError, Problem
from runner.core.model.launch_request import DryRun
from runner.core.model.spec import Deploy, Node, Spec, Ssh, Task
from runner.core.secret import Secret

PROGRAM_KEYS = ("module", "script", "command")
BACKENDS = ("auto", "nccl", "gloo")
DEPLOYS = ("auto", "never")
PULLS = ("auto", "never")
HOST_KEYS = ("strict", "accept-new")
ACTIONS = ("report", "stop", "restart")
STACKS = ("auto", "never")


def build(asked: Asked, problems: list[Problem]) -> tuple[Spec, dict[str, Any]]:
    """Check everything; return the `Spec` and the fields of `Composed` that are options of the run.

    Args:
        asked: What was composed.
        problems: What was found before; told together with what is found here.

    Raises:
        ConfigError: With every problem.
    """
    check = Checker(problems)
    values, cluster = asked.values, asked.values["cluster"]
    nodes, spares, least = chosen(check, asked, all_nodes(check, asked))
    action = check.choice("watch.action", values["watch"]["action"], ACTIONS)
    options_of_torchrun = read_torchrun(check, values["torchrun"])
    rendezvous = read_rendezvous(check, values["rendezvous"], nodes, least)
    task = _task(check, asked)
    if task.plain:
        check_plain(check, values, (*nodes, *spares), rendezvous)
    env, secrets = _environment(check, asked, nodes, task)
    spec = Spec(
        run_id=check.run_id("run_id", values["run_id"]),
        cluster=asked.cluster,
        nodes=nodes,
        task=task,
        master_port=check.ports("cluster.master_port", cluster["master_port"]),
        backend=check.choice("cluster.backend", cluster["backend"], BACKENDS),
        rendezvous=rendezvous,
        torchrun=options_of_torchrun,
        relaunch=relaunch(
            *(check, values["relaunch"], rendezvous, options_of_torchrun),
            restarts=action == "restart",
        ),
        least=least,
        spares=spares,
        ssh=_ssh(check, cluster["ssh"], asked.cwd),
        python=check.line("cluster.python", cluster["python"]),
        host_python=check.line("cluster.host_python", cluster["host_python"]),
        setup=check.words("cluster.setup", cluster["setup"]),
        project=_project(check, cluster["project"], asked),
        workdir=check.line("cluster.workdir", cluster["workdir"]),
        deploy=_deploy(check, values),
        pull_outputs=check.choice("outputs.pull", values["outputs"]["pull"], PULLS) == "auto",
        skip_checks=tuple(
            check.choice("check.skip", name, tuple(CHECKS))
            for name in check.words("check.skip", values["check"]["skip"])
        ),
        env=env,
        secrets=secrets,
        grace_s=check.seconds("stop.grace_s", values["stop"]["grace_s"]),
        lost_s=check.seconds("lost_s", values["lost_s"]),
        disconnect_s=_disconnect_s(check, values),
        stall_s=_stall_s(check, values["watch"]["stall_s"]),
        stall_stops=action != "report",
        stall_restarts=action == "restart",
        metrics=check.outputs("watch.metrics", values["watch"]["metrics"]),
        stacks=check.choice("watch.stacks", values["watch"]["stacks"], STACKS) == "auto",
        detach=bool(values["detach"]),
    )
    run_dir = Path(check.line("run_dir", values["run_dir"])).expanduser()
    dry_run = check.choice("dry_run", scalar(values["dry_run"]), [d.value for d in DryRun])
    options = {
        "dry_run": DryRun(dry_run),
        "run_dir": Path(asked.cwd, run_dir),
        "ui": check.choice("ui", values["ui"], ("auto", "plain")),
        "console_ranks": check.ranks("logs.ranks", values["logs"]["ranks"]),
    }
    if problems:
        raise ConfigError(problems)
    return spec, options


def _disconnect_s(check: Checker, values: Mapping[str, Any]) -> float:
    """Return how long a run goes on without a controller; 0 for ever."""
    seconds = check.seconds("disconnect_s", values["disconnect_s"])
    keep = check.choice("on_disconnect", values["on_disconnect"], ("stop", "keep")) == "keep"
    return 0.0 if keep else seconds


def _stall_s(check: Checker, value: object) -> float:
    """Return after how long without progress that is said; 0 for never."""
    if value == "off" or value is False or value is None:  # YAML takes off for false
        return 0.0
    if isinstance(value, str):
        check.wrong("watch.stall_s", f"must be a number of seconds, or off, not {value!r}")
        return 0.0
    return check.seconds("watch.stall_s", value)


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program a task without a YAML file runs."""
    if task.get("module"):
        return str(task["module"]).rpartition(".")[2]
    command = task.get("command") or ""
    words = command if isinstance(command, list) else str(command).split()
    program = task.get("script") or (words[0] if words else "")
    return PurePath(str(program)).stem or "task"


def _ssh(check: Checker, ssh: Mapping[str, Any], cwd: str) -> Ssh:
    key = check.optional_line("cluster.ssh.key", ssh["key"])
    if key and not Path(cwd, Path(key).expanduser()).is_file():
        check.wrong("cluster.ssh.key", f"there is no file {key}")
    jump = check.words("cluster.ssh.jump", ssh["jump"])
    return Ssh(
        user=check.optional_line("cluster.ssh.user", ssh["user"]),
        port=check.port("cluster.ssh.port", ssh["port"]),
        key=key,
        config=check.line("cluster.ssh.config", ssh["config"]),
        jump=tuple(hop.strip() for word in jump for hop in word.split(",")),
        known_hosts=check.line("cluster.ssh.known_hosts", ssh["known_hosts"]),
        host_keys=check.choice("cluster.ssh.host_keys", ssh["host_keys"], HOST_KEYS),
        connect_timeout=check.seconds("cluster.ssh.connect_timeout", ssh["connect_timeout"]),
    )


def _project(check: Checker, value: object, asked: Asked) -> str:
    """Return where the code is on the hosts: by default where the user stands, as they see it."""
    project = check.optional_line("cluster.project", value)
    if project and project.startswith("~"):
        return project
    seen = Path(asked.environ.get("PWD", ""))
    same = seen.is_absolute() and seen.exists() and seen.samefile(asked.cwd)
    return str((seen if same else Path(asked.cwd)) / (project or ""))


def _deploy(check: Checker, values: Mapping[str, Any]) -> Deploy:
    """Return what is pushed: nothing where the YAML says that the code is on the hosts already."""
    cluster, bounds = values["cluster"], values["deploy"]
    when = check.choice("cluster.deploy", cluster["deploy"], DEPLOYS)
    return Deploy(
        on=when == "auto" and cluster["project"] is None,
        max_mb=check.number("deploy.max_mb", bounds["max_mb"], least=1),
        keep=check.number("deploy.keep", bounds["keep"], least=0),
    )


def _environment(
    check: Checker, asked: Asked, nodes: Sequence[Node], task: Task
) -> tuple[dict[str, str], dict[str, Secret]]:
    """Return the environment of all ranks, and its secret part."""
    cluster = asked.values["cluster"]
    passed = _copied(check, "cluster.pass_env", cluster["pass_env"], asked.environ)
    secrets = _copied(check, "cluster.secrets", cluster["secrets"], asked.environ)
    env = check.env("cluster.env", cluster["env"])
    in_the_open = {"cluster.pass_env": passed, "cluster.env": env, "task.env": task.env}
    in_the_open |= {f"cluster.nodes.{node.name}.env": node.env for node in nodes}
    for place, names in in_the_open.items():
        for name in secrets.keys() & names.keys():
            check.wrong(place, f"{name} is a secret (cluster.secrets) and would be recorded here")
    return {**passed, **env}, {name: Secret(text) for name, text in secrets.items()}


def _copied(
    check: Checker, where: str, value: object, environ: Mapping[str, str]
) -> dict[str, str]:
    names = check.words(where, value)
    for name in names:
        check.env_name(where, name)
        if name not in environ:
            hint = f"export {name}=… first, or take it out of {where}"
            check.wrong(where, f"{name} is not set in this shell's environment", hint)
    return {name: environ[name] for name in names if name in environ}


def _task(check: Checker, asked: Asked) -> Task:
    task = asked.values["task"]
    given = [key for key in PROGRAM_KEYS if task[key] not in (None, "", [])]
    if not given:
        keys = either([f"task.{key}" for key in PROGRAM_KEYS])
        check.wrong("task", f"there is nothing to run; set {keys}", "such as task.script=train.py")
    if len(given) > 1:
        what = f"there is more than one thing to run: {' and '.join(given)}"
        check.wrong("task", what, f"task.{given[0]}=null takes one out")
    kind = given[0] if given else "script"
    target, *words = _program(check, kind, task[kind])
    entry = check.choice("task.entry", task["entry"], ENTRIES)
    local_rank = local_rank_words(check, task["local_rank_arg"], entry)
    return Task(
        name=asked.task,
        kind=kind,
        target=target,
        args=(*words, *local_rank, *arguments(check, task["args"], task["args_style"])),
        env=check.env("task.env", task["env"]),
        outputs=check.outputs("task.outputs", task["outputs"]),
        entry=entry,
    )


def _program(check: Checker, kind: str, value: object) -> list[str]:
    where = f"task.{kind}"
    if kind == "command":
        words = check.words(
            where, value if isinstance(value, list) else split_words(check, where, value)
        )
        return list(words) or [""]
    text = check.optional_line(where, value) or ""
    named = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text) and not text.endswith(".py")
    if kind == "module" and not named:
        what = f"{text!r} is no module name such as package.train"
        check.wrong(where, what, f"a file is task.script={text}")
    return [text]
