"""Scaffold: the first YAML of a project, as `init` writes it, from templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.cli.host_list import Nodes, check_user, input_error, parse_hosts, read_hostfile
from runner.config.overrides import names_file
from runner.config.search_path import conf_folders, shipped_folder
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.shell import expand_home, this_program
from runner.core.text import join_some
from runner.transport.ssh.config_files import host_names
from runner.ui.layout import aligned, terminal_width
from runner.ui.output import show, show_prose

EXAMPLE_HOSTS = "gpu1 gpu2"
SHIPPED_CLUSTER = "local"  # this and the task are what works here at once
SHIPPED_TASK = "resnet18"
DEFAULT_PYTHON = "python3"
DEFAULT_SCRIPTS = ("train.py", "main.py")
SSH_CONFIG = "~/.ssh/config"

PRIMARY = """\
# What `runner` alone means here. Other keys below hold for all runs, such as lost_s: 60.
defaults:
  - cluster: {cluster}
  - task: {task}
"""
FABFILE = """\
\"""fab -l shows what there is.\"""

import os
import sys

sys.path.sort(key=os.path.dirname(__file__).__eq__)  # last: a runner.py here is not meant below
from runner.verbs import *  # noqa: E402, F403
"""
CLUSTER = """\
# The machines of cluster {cluster}: runner cluster={cluster} task={task}
defaults: [base]

# In rank order. The name is the SSH name unless `host` is set; gpu[01-16] stands for sixteen.
nodes:
{nodes}

{nproc}  # ranks on a node; auto: one per GPU, one without GPUs
python: {python}  # the interpreter that has torch, on the hosts
ssh:
  user: {user}  # null: as in your ~/.ssh/config
  key: {key}
#setup: []  # lines for bash before the task, such as [module load cuda]

# `runner config cluster` prints all keys, docs/configuration.md says what they mean.
"""
TASK = """\
# Task {task}: runner cluster={cluster} task={task}
defaults: [base]

# A Python file, relative to the folder you stand in. In its place: module (such as package.train),
# or command for what is not Python.
script: {script}

# Its arguments. true makes a flag alone, a list several values, null leaves one out.
# For one run: task.args.lr=0.2
#args: {{lr: 0.1, epochs: 3}}  # --lr 0.1 --epochs 3
"""


@dataclass(frozen=True)
class ScaffoldResult:
    """The outcome of `scaffold`."""

    written: tuple[Path, ...]
    existing: tuple[Path, ...]  # unchanged
    overrides: tuple[str, ...]  # they choose the new cluster and task


def scaffold(
    cluster: str = "mine",
    task: str = "train",
    *,
    interactive: bool,
    fabfile: bool = False,
    **given: str,
) -> ScaffoldResult:
    """Write YAML into the working directory, and print the next steps.

    A cluster, a task, and a runner.yaml that makes them the choice of runs that name none. Who
    was asked and named no machines, or no program, gets the shipped one in place of a file.

    `given` are the `hosts` or a `hostfile`, `user`, `key`, `python` and `script`.

    Raises:
        ConfigError: A value is illegal, or a file cannot be written; as after Interrupted, nothing
            is written.
    """
    _check_given(cluster, task, given)
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    primary_file = Path("conf", "runner.yaml")
    asks_cluster = interactive and not _is_there(cluster_file)
    asks_script = interactive and not _is_there(task_file)
    values = _ask_for_missing(given, asks_cluster=asks_cluster, asks_script=asks_script)
    nodes = _nodes(values)
    script = values.get("script", "")
    cluster = SHIPPED_CLUSTER if asks_cluster and not nodes else cluster
    task = SHIPPED_TASK if asks_script and not script else task
    texts = {}
    notes = {}
    if cluster_file.stem == cluster:
        texts[cluster_file] = _cluster_yaml(cluster, task, nodes, values)
        notes[cluster_file] = "" if nodes else ": put your own machines below `nodes`"
    else:
        notes[primary_file] = ": this machine alone; init --hosts adds others"
    if task_file.stem == task:
        texts[task_file] = _task_yaml(cluster, task, script)
        notes[task_file] = "" if script else ": name your own program as `script`"
    texts[primary_file] = PRIMARY.format(cluster=cluster, task=task)
    if fabfile:
        texts[Path("fabfile.py")] = FABFILE
    existing = tuple(filter(_is_there, texts))
    written = tuple(file for file in texts if file not in existing)
    earlier_conf = conf_folders([])[0]
    _write({file: texts[file] for file in written})
    for file in written:
        show_prose(f"wrote  {file}{notes.get(file, '')}")
    for file in existing:
        show_prose(f"kept   {file}, as it is")
    if cluster_file in existing or task_file in existing:
        show_prose("--cluster OTHER and --task OTHER write other files")
    if earlier_conf not in (Path.cwd() / "conf", shipped_folder()):
        note = "is not read from here any more: conf is nearer (--config-dir adds it)"
        show_prose(f"{earlier_conf} {note}")
    overrides = (f"cluster={cluster}", f"task={task}")
    _print_next_steps(() if primary_file in written else overrides)
    return ScaffoldResult(written, existing, overrides)


def _check_given(cluster: str, task: str, given: Mapping[str, str]) -> None:
    """Raise ConfigError for an illegal value of a flag."""
    for flag, name in (("--cluster", cluster), ("--task", task)):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            message = f"{name!r} is no name for a file of YAML; use a-z, 0-9, '_' and '-'"
            raise input_error(flag, message)
        if name == "base":
            raise input_error(flag, "base is the name of the defaults; choose another")
    if given.get("hosts") and given.get("hostfile"):
        raise input_error("--hostfile", "names the machines, and so does --hosts: give one of them")
    for name, text in given.items():
        if text:
            CHECKS[name](text)


def _nodes(values: Mapping[str, str]) -> Nodes:
    """Return the machines that flags or an answer name."""
    if values.get("hostfile"):
        return read_hostfile(values["hostfile"])
    return parse_hosts(values["hosts"]) if values.get("hosts") else {}


def _ask_for_missing(
    given: Mapping[str, str], *, asks_cluster: bool, asks_script: bool
) -> dict[str, str]:
    """Return what is given, and what is answered on a terminal; "" for Enter alone."""
    answers = dict(given)
    try:
        if asks_cluster and not _nodes(given):
            if names := list(host_names(Path(expand_home(SSH_CONFIG)))):
                show_prose(f"{SSH_CONFIG} names {join_some(names)}")
            question = "Machines, such as gpu[01-04] or ada@10.0.0.5:22 [this machine]"
            answers["hosts"] = _ask(question, "", CHECKS["hosts"])
        if asks_cluster and _nodes(answers) and not given.get("python"):
            question = "Python there that has torch"
            answers["python"] = _ask(question, DEFAULT_PYTHON, CHECKS["python"])
        if asks_script and not given.get("script"):
            script = next(filter(names_file, DEFAULT_SCRIPTS), "")
            example = "" if script else " [resnet18, an example]"
            question = f"Program to train with, a file here{example}"
            answers["script"] = _ask(question, script, CHECKS["script"])
    except (KeyboardInterrupt, EOFError):
        show_prose("")
        raise Interrupted(130, "interrupted; nothing was written") from None
    return answers


def _ask(question: str, default: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is legal."""
    while True:
        suffix = f" [{default}]" if default else ""
        text = input(f"{question}{suffix}: ").strip() or default
        try:
            if text:
                check(text)
        except ConfigError as error:
            show_prose("\n".join(f"  {problem.message}" for problem in error.problems))
        else:
            return text


def _print_next_steps(overrides: tuple[str, ...]) -> None:
    command = " ".join([this_program(), *overrides])
    check = " ".join([this_program(), "check", *overrides])
    steps = [
        (check, "# tries every machine, starts nothing"),
        (f"{command} dry_run=true", "# shows every command, starts nothing"),
    ]
    lines = aligned(steps)
    if max(map(len, lines)) >= terminal_width():
        lines = [f"  {meaning}\n  {step}" for step, meaning in steps]
    show("\n".join(["next:", *lines, f"  {command}"]))


def _check_key(text: str) -> None:
    try:
        content = Path(expand_home(text)).read_bytes()
    except OSError as error:
        raise input_error("--key", f"{text} cannot be read: {error.strerror}") from error
    if not re.match(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----", content):
        raise input_error("--key", f"{text} is no private key: -----BEGIN … begins one")


def _check_interpreter(text: str) -> None:
    if not text.isprintable():
        raise input_error("--python", f"{text!r} is no path of one line")


def _check_script(text: str) -> None:
    if not text.isprintable() or not names_file(text):
        raise input_error("--script", f"there is no file {text!r} here")


CHECKS: Mapping[str, Callable[[str], object]] = {
    "hosts": parse_hosts,
    "hostfile": read_hostfile,
    "user": check_user,
    "key": _check_key,
    "python": _check_interpreter,
    "script": _check_script,
}
"""For a value what raises ConfigError where it is illegal."""


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def yaml_scalar(value: str | int, *, in_flow: bool = False) -> str:
    """Return a value as YAML that Hydra reads as the same one, also within brackets or braces."""
    text = value.replace("${", "\\${") if isinstance(value, str) else value
    # Hydra takes more for numbers than YAML does.
    is_number = re.fullmatch(r"[-+]?[0-9._]+[eE][-+]?[0-9_]+", str(text))
    dumped: str = yaml.safe_dump(
        [text] if in_flow else text,
        width=10**6,
        allow_unicode=True,
        default_flow_style=True,
        default_style="'" if is_number else None,
    )
    dumped = dumped.removesuffix("\n").removesuffix("\n...")
    return dumped[1:-1] if in_flow else dumped


def _cluster_yaml(cluster: str, task: str, nodes: Nodes, values: Mapping[str, str]) -> str:
    note = "" if nodes else "  # an example: put your own machine here"
    nodes = nodes or parse_hosts(EXAMPLE_HOSTS)
    counts = {body.get("nproc_per_node", "auto") for body in nodes.values()}
    common = counts.pop() if len(counts) == 1 else "auto"
    lines = []
    for name, body in nodes.items():
        own = body if common == "auto" else {k: v for k, v in body.items() if k != "nproc_per_node"}
        pairs = (f"{key}: {yaml_scalar(value, in_flow=True)}" for key, value in own.items())
        lines.append(f"  {yaml_scalar(name)}: {{{', '.join(pairs)}}}{note}")
    user = values.get("user")
    key = values.get("key")
    return CLUSTER.format(
        cluster=cluster,
        task=task,
        nodes="\n".join(lines),
        nproc="#nproc_per_node: auto" if common == "auto" else f"nproc_per_node: {common}",
        python=yaml_scalar(values.get("python") or DEFAULT_PYTHON),
        user=yaml_scalar(user) if user else "null",
        key=yaml_scalar(key) if key else "null",
    )


def _task_yaml(cluster: str, task: str, script: str) -> str:
    note = "" if script else "  # an example: put your own program here"
    text = yaml_scalar(script or DEFAULT_SCRIPTS[0]) + note
    return TASK.format(cluster=cluster, task=task, script=text)


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files or none, and overwrite none."""
    created: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                created.append(path)
                file.write(text)
    except OSError as error:
        for path in created:
            path.unlink()
        where = str(error.filename or "conf")
        raise ConfigError([Problem(where, f"cannot be written: {error.strerror}")]) from error
