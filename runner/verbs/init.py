"""The verb `init`: the first YAML of a project, from templates, flags and three questions."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import yaml

from runner.config.kinds import Problems
from runner.config.nodes import read_nodes
from runner.config.words import names_file
from runner.core.errors import reason_of
from runner.core.shell import expand_home, this_program
from runner.core.spec import Cluster
from runner.ui.layout import aligned
from runner.ui.output import show, show_prose
from runner.verbs.shared.verb import verb

Nodes = dict[str, dict[str, str | int]]
"""Entries of `cluster.nodes` by name, with the keys that differ from the defaults."""

FORMS = "gpu1, gpu[01-16], ada@10.0.0.5:22 or NAME=ADDRESS"
MACHINE = re.compile(
    r"(?:(?P<name>\w[\w.-]*)=)?(?:(?P<user>[^\W-][^\s:]*)@)?"
    r"(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]"
    r"|(?P<host>[^\s@:\[\]]*:[^\s@\[\]]*:[^\s@\[\]]*|\w(?:[\w.,-]|\[[\d,-]+\])*))"
    r"(?::(?P<port>\d+))?"
)
SCRIPTS = ("train.py", "main.py")
SHIPPED_CLUSTER = "local"  # this and the task are what works here at once
SHIPPED_TASK = "resnet18"
PRIMARY_FILE = Path("conf", "runner.yaml")
EXAMPLE = "  # an example: put your own"

PRIMARY = """\
# What `runner` alone means here. Other keys below hold for all runs, such as lost_s: 60.
defaults:
  - cluster: {cluster}
  - task: {task}
"""
CLUSTER = """\
# The machines of cluster {cluster}: runner cluster={cluster} task={task}
defaults: [base]

# In rank order. The name is the SSH name unless `host` is set; gpu[01-16] stands for sixteen.
{nodes}

#nproc_per_node: auto  # ranks on a node; auto: one per GPU, one without GPUs
{python}  # the interpreter that has torch, on the hosts
{ssh}  # null: as in your ~/.ssh/config
#setup: []  # lines for bash before the task, such as [module load cuda]

# `runner config cluster` prints all keys, docs/configuration.md says what they mean.
"""
TASK = """\
# Task {task}: runner cluster={cluster} task={task}
defaults: [base]

# A Python file, relative to the folder you stand in. In its place: module (such as package.train),
# or command for what is not Python.
{script}

# Its arguments. true makes a flag alone, a list several values, null leaves one out.
# For one run: task.args.lr=0.2
#args: {{lr: 0.1, epochs: 3}}  # --lr 0.1 --epochs 3
"""


def _name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name == "base":
        raise click.BadParameter(f"{name!r} is no name for a file; use a-z, 0-9, '_' and '-'")
    return name


@verb(
    "init",
    subject="",
    examples={
        "init": "asks",
        "init --hosts 'gpu[01-16]'": "sixteen machines",
        "init --hostfile hosts": "of DeepSpeed or MPI",
    },
)
@click.option("--hosts", multiple=True, metavar="gpu1,gpu2", help=f"{FORMS}; repeatable")
@click.option("--hostfile", default="", metavar="hosts", help="a machine a line, or with slots=4")
@click.option("--script", default="", metavar="train.py", help="the program to train with")
@click.option("--python", default="", metavar="~/v/bin/python", help="the Python there with torch")
@click.option("--user", metavar="ada", help="the login name on the hosts")
@click.option("--key", metavar="~/.ssh/lab", help="the private key to log in with")
@click.option("--cluster", default="mine", metavar="mine", callback=_name, help="name of its file")
@click.option("--task", default="train", metavar="train", callback=_name, help="name of its file")
def init(
    cluster: str,
    task: str,
    hosts: tuple[str, ...],
    hostfile: str,
    script: str,
    python: str,
    user: str | None,
    key: str | None,
) -> int:
    """Write the first YAML of a project: a cluster, a task, and which of them is the default.

    On a terminal it asks for machines, their Python and the program, where no flag gives them. No
    machine is contacted. Existing files are kept.
    """
    if hosts and hostfile:
        raise _wrong("--hostfile and --hosts both name the machines: give one of them")
    nodes = read_hostfile(hostfile) if hostfile else parse_hosts(" ".join(hosts))
    _existing_script(script)
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    is_asking = sys.stdin.isatty() and sys.stdout.isatty()
    if is_asking and not nodes and not cluster_file.exists():
        question = f"Machines: {FORMS} [this machine]"
        nodes = click.prompt(question, "", show_default=False, value_proc=parse_hosts)
        cluster = cluster if nodes else SHIPPED_CLUSTER
    if is_asking and nodes and not python and not cluster_file.exists():
        python = click.prompt("Python there that has torch", "python3")
    if is_asking and not script and not task_file.exists():
        question = f"Program: a file here, or {SHIPPED_TASK}, an example"
        found = next(filter(names_file, SCRIPTS), SHIPPED_TASK)
        script = click.prompt(question, found, value_proc=_existing_script)
        task = SHIPPED_TASK if script == SHIPPED_TASK else task
    texts = {}
    if cluster == cluster_file.stem:
        machines = _yaml("nodes", nodes or {"gpu1": {}, "gpu2": {}})
        example = "" if nodes else f"{EXAMPLE} machines here"
        texts[cluster_file] = CLUSTER.format(
            cluster=cluster,
            task=task,
            nodes=machines.replace("nodes:", f"nodes:{example}", 1),
            python=_yaml("python", python or "python3"),
            ssh=_yaml("ssh", {"user": user, "key": key}),
        )
    if task == task_file.stem:
        line = _yaml("script", script or SCRIPTS[0])
        example = "" if script else f"{EXAMPLE} program here"
        texts[task_file] = TASK.format(cluster=cluster, task=task, script=line + example)
    texts[PRIMARY_FILE] = PRIMARY.format(cluster=cluster, task=task)
    words = f" cluster={cluster} task={task}" if PRIMARY_FILE.exists() else ""
    _write(texts, words)
    return 0


def _write(texts: Mapping[Path, str], words: str) -> None:
    """Write the files that are not there; print which, and what to type next with these words."""
    for file, text in texts.items():
        if file.exists() or file.is_symlink():
            show_prose(f"kept   {file}, as it is")
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _wrong(f"{error.filename} cannot be written: {error.strerror}") from error
        edit = ": put your own below `nodes` or as `script`" if EXAMPLE in text else ""
        show_prose(f"wrote  {file}{edit}")
    program = this_program()
    steps = [
        (f"{program} check{words}", "# tries every machine, starts nothing"),
        (f"{program}{words} dry_run=true", "# shows every command, starts nothing"),
        (f"{program}{words}", ""),
    ]
    show("\n".join(["next:", *aligned(steps)]))


def _wrong(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


def _existing_script(text: str) -> str:
    if text not in ("", SHIPPED_TASK) and not names_file(text):
        raise _wrong(f"--script: there is no file {text!r} here")
    return text


def parse_hosts(
    text: str, place: str = "--hosts", slots: str = "", before: Nodes | None = None
) -> Nodes:
    nodes = {**(before or {})}
    # Commas and blanks separate machines, except within brackets.
    for word in filter(None, re.split(r"[,\s]+(?![^\[\]]*\])", text)):
        if before is None and names_file(word):
            raise _wrong(f"{place}: {word!r} is a file here: --hostfile {word} reads one")
        match = MACHINE.fullmatch(word)
        if not match:
            raise _wrong(f"{place}: {word!r} is no machine; such as {FORMS}")
        name, user, in_brackets, bare, port = match.groups()
        address = in_brackets or bare
        if name and "[" in address:
            raise _wrong(f"{place}: {word!r} gives one name to many machines")
        if not name and re.fullmatch(r"[\d.]+|.*:.*", address):
            numbered = (f"node{number}" for number in itertools.count(len(nodes) + 1))
            name = next(each for each in numbered if each not in nodes)
        short = address.partition(".")[0]  # without dots overrides can name it
        name = name or (address if "[" in address or short in nodes else short)
        if name in nodes:
            raise _wrong(f"{place}: {word!r} names a machine a second time")
        entry = {
            "host": "" if name == address else address,
            "user": user,
            "port": int(port or 0),
            "nproc_per_node": int(slots or 0),
        }
        nodes[name] = {key: value for key, value in entry.items() if value}
        problems = Problems()
        read_nodes(problems, Cluster(nodes={name: nodes[name]}))
        if problems:
            raise _wrong(f"{place}: {word!r}: {problems[0].message}")
    return nodes


def read_hostfile(file: str) -> Nodes:
    """Return the entries of `cluster.nodes` for a hostfile of DeepSpeed or MPI.

    A line is a machine, perhaps with slots=4, its ranks, and other KEY=VALUE, which are not used.
    """
    try:
        text = Path(expand_home(file)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _wrong(f"--hostfile: {file} cannot be read: {reason_of(error)}") from error
    nodes: Nodes = {}
    for number, line in enumerate(text.splitlines(), start=1):
        machine, *pairs = line.partition("#")[0].split() or [""]
        slots = next((pair[6:] for pair in pairs if pair.startswith("slots=")), "")
        if not slots and (of_mpich := re.fullmatch(r"([^@:]+):(\d+)", machine)):
            machine, slots = of_mpich.groups()
        place = f"--hostfile {file}, line {number}"
        if not re.fullmatch(r"(?!22$)[1-9]\d{0,2}|", slots):
            raise _wrong(f"{place}: {slots} is no number of ranks; after a port write slots=N")
        nodes = parse_hosts(machine, place, slots, before=nodes)
    if not nodes:
        raise _wrong(f"--hostfile: {file} names no machine")
    return nodes


def _yaml(key: str, value: object) -> str:
    """Return a key with its value as YAML, in which OmegaConf finds nothing to replace."""
    flow = None if isinstance(value, dict) else False  # None: mappings within it in braces
    dumped: str = yaml.safe_dump(
        {key: value}, width=10**6, allow_unicode=True, default_flow_style=flow, sort_keys=False
    )
    return dumped.replace("${", "\\${").rstrip("\n")
