"""Scaffold: the first YAML of a project, as `init` writes it, from templates."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import yaml

from runner.cli.host_list import input_error, parse_hosts
from runner.cli.wizard import DEFAULT_PYTHON, DEFAULT_SCRIPTS, collect_answers
from runner.config.search_path import conf_folders, shipped_folder
from runner.core.dataclass import dataclass
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.ui.layout import terminal_width
from runner.ui.output import show, show_prose

EXAMPLE_HOSTS = "gpu1 gpu2"
SHIPPED_CLUSTER, SHIPPED_TASK = "local", "resnet18"  # what works here at once

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
# More keys of a node: addr, user, port, gpus, nproc_per_node, env, transport, interface.
nodes:
{nodes}

# The interpreter that has torch, on the hosts.
python: {python}

# SSH. null: as in your ~/.ssh/config.
ssh:
  user: {user}
  #port: null
  key: {key}
  #jump: null              # a host to go through, or a list of them
  #config: ~/.ssh/config   # your ssh configuration, where it is another file
  #known_hosts: ~/.ssh/known_hosts
  #host_keys: strict       # strict: unknown hosts are refused; accept-new: they are learnt

# The other keys, with their defaults.
#gpus_per_node: auto       # auto: all of them; or a number
#nproc_per_node: auto      # ranks on a node; auto: one per GPU, one without GPUs
#backend: auto             # auto: nccl where every node has a GPU per rank, else gloo
#master: null              # the node of rank 0; null: the first
#master_port: auto         # auto: a free one; or 29500-29600, where a firewall needs it
#exclude: []               # nodes to leave out, such as [gpu3, "gpu[10-12]"]
#setup: []                 # lines for bash before the task, such as [module load cuda]
#project: null             # null: the code you stand in is pushed; or its folder on the hosts
#workdir: ~/.runner        # where runs are kept on the hosts
#env: {{}}                   # environment of all ranks, such as {{NCCL_DEBUG: INFO}}
#secrets: []               # names to take from your environment, never written anywhere
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
#args_style: argparse      # equals: --lr=0.1; hydra: lr=0.1 epochs=3; raw: a list of words
#local_rank_arg: null      # such as --local_rank, for an old script that takes it so
#entry: torchrun           # launch: torch.distributed.launch; plain: one process a node, without
#preload: false            # true: torch is imported once per node, and ranks are forked
#args_expand: false        # for plain: $RANK, $MASTER_ADDR and the like in arguments are replaced

# The other keys, with their defaults.
#env: {{}}                   # environment of the ranks; DIST_BACKEND, RANK and the like are set
#nodes: []                 # the nodes to use, such as [gpu1, "gpu[03-08]"]; []: all
#nnodes: null              # how many of them; null: all
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
    hosts: Sequence[str] = (),
    interactive: bool,
    **others: str,
) -> ScaffoldResult:
    """Write YAML and a fabfile into the working directory, and print the next steps.

    A cluster, a task, and a runner.yaml that makes them the choice of runs that name none. Who
    was asked and named no machines, or no program, gets the shipped one in place of a file.

    Args:
        cluster: The name of the cluster's file.
        task: The name of the task's file.
        hosts: As `parse_hosts` takes them.
        interactive: Whether to ask for what is not given.
        others: The `user`, `key`, `python` and `script`.

    Raises:
        ConfigError: A value is illegal, or a file cannot be written; as after Interrupted, nothing
            is written.
    """
    _check_file_name("--cluster", cluster)
    _check_file_name("--task", task)
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    primary_file, fabfile = Path("conf", "runner.yaml"), Path("fabfile.py")
    given = dict.fromkeys(("hosts", "user", "key", "python", "script"), "")
    given |= {"hosts": " ".join(hosts), **others}
    not_asked = {"hosts", "user", "key", "python"} if _is_there(cluster_file) else set()
    not_asked |= {"script"} if _is_there(task_file) else set()
    answers = collect_answers(given, not_asked, interactive=interactive)
    unnamed = {name for name in answers if interactive and not answers[name]} - not_asked
    cluster = SHIPPED_CLUSTER if "hosts" in unnamed else cluster
    task = SHIPPED_TASK if "script" in unnamed else task
    texts = {
        cluster_file: "" if "hosts" in unnamed else _cluster_yaml(cluster, task, answers),
        task_file: "" if "script" in unnamed else _task_yaml(cluster, task, answers),
        primary_file: PRIMARY.format(cluster=cluster, task=task),
        fabfile: FABFILE,
    }
    existing = tuple(file for file, text in texts.items() if text and _is_there(file))
    nearest_conf = next(iter(conf_folders([])))
    new = {file: text for file, text in texts.items() if text and file not in existing}
    _write(new)
    outcome = ScaffoldResult(tuple(new), existing, (f"cluster={cluster}", f"task={task}"))
    edits = {
        cluster_file: "" if answers["hosts"] else ": put your own machines below `nodes`",
        task_file: "" if answers["script"] else ": name your own program as `script`",
        primary_file: ": this machine alone; init --hosts adds others"
        if "hosts" in unnamed
        else "",
    }
    _print_files(outcome, edits, nearest_conf)
    _print_unused(given, existing, (cluster_file, task_file))
    _print_open_problem(answers.get("problem", ""), cluster_file)
    _print_next_steps([] if primary_file in new else outcome.overrides)
    return outcome


def _print_files(outcome: ScaffoldResult, edits: Mapping[Path, str], earlier_conf: Path) -> None:
    for file in outcome.written:
        show_prose(f"wrote  {file}{edits.get(file, '')}")
    for file in outcome.existing:
        show_prose(f"kept   {file}, as it is")
    if earlier_conf not in (Path.cwd() / "conf", shipped_folder()):
        note = "is not read from here any more: conf is nearer (--config-dir adds it)"
        show_prose(f"{earlier_conf} {note}")


def _print_unused(
    given: Mapping[str, str], existing: Collection[Path], files: tuple[Path, Path]
) -> None:
    """Name the flags whose file was there already."""
    flags = ("hosts", "user", "key", "python"), ("script",)
    for file, names, choice in zip(files, flags, ("--cluster", "--task"), strict=True):
        unused = " and ".join(f"--{name}" for name in names if given[name])
        if unused and file in existing:
            hint = f"{choice} OTHER writes a second file; or edit {file}"
            show_prose(str(Problem(unused, f"not used, because {file} was there", hint)))


def _print_open_problem(problem: str, cluster_file: Path) -> None:
    if problem:
        show_prose(f"first: {problem}")
    if "cluster.ssh." in problem:
        show_prose(f"    cluster.ssh.KEY is the KEY below `ssh` in {cluster_file}")


def _print_next_steps(overrides: Sequence[str]) -> None:
    run = " ".join([this_program(), *overrides])
    steps = {
        f"{run} dry_run=offline": "prints the plan, contacts no host",
        f"{run} dry_run=true": "shows every command, starts nothing",
    }
    show_prose("next:")
    width = max(map(len, steps))
    lines = [f"  {command:{width}}   # {meaning}" for command, meaning in steps.items()]
    if max(map(len, lines)) >= terminal_width():
        lines = [f"  # {meaning}\n  {command}" for command, meaning in steps.items()]
    show("\n".join(lines))
    show(f"  {run}")


def _check_file_name(flag: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise input_error(flag, f"{name!r} is no name for a file of YAML; use a-z, 0-9 and '-'")
    if name == "base":
        raise input_error(flag, "base is the name of the defaults; choose another")


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def yaml_scalar(value: str | int, *, in_flow: bool = False) -> str:
    """Return a value as YAML that Hydra reads as the same one, also within brackets or braces."""
    if isinstance(value, int):
        return str(value)
    text = value.replace("${", "\\${")
    dumped: str = yaml.safe_dump(
        [text] if in_flow else text,
        width=10**6,
        allow_unicode=True,
        default_flow_style=True,
        # Hydra takes more for numbers than YAML does, such as 1e3.
        default_style="'" if _is_number(text) else None,
    )
    dumped = dumped.removesuffix("\n").removesuffix("\n...")
    return dumped[1:-1] if in_flow else dumped


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cluster_yaml(cluster: str, task: str, answers: Mapping[str, str]) -> str:
    note = "" if answers["hosts"] else "  # an example: put your own machine here"
    nodes = []
    for name, body in parse_hosts(answers["hosts"] or EXAMPLE_HOSTS).items():
        pairs = (f"{key}: {yaml_scalar(value, in_flow=True)}" for key, value in body.items())
        nodes.append(f"  {yaml_scalar(name)}: {{{', '.join(pairs)}}}{note}")
    return CLUSTER.format(
        cluster=cluster,
        task=task,
        nodes="\n".join(nodes),
        python=yaml_scalar(answers["python"] or DEFAULT_PYTHON),
        user=yaml_scalar(answers["user"]) if answers["user"] else "null",
        key=yaml_scalar(answers["key"]) if answers["key"] else "null",
    )


def _task_yaml(cluster: str, task: str, answers: Mapping[str, str]) -> str:
    script = yaml_scalar(answers["script"] or DEFAULT_SCRIPTS[0])
    note = "" if answers["script"] else "  # an example: put your own program here"
    return TASK.format(cluster=cluster, task=task, script=script + note)


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
