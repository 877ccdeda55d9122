"""The verb `init`: the first YAML of a project, from templates, flags and three questions."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import click
import yaml

from runner.config.nodes import expand_range
from runner.config.words import names_file
from runner.core.errors import ConfigError, Interrupted, Problem, reason_of
from runner.core.model.facts import MAX_PORT
from runner.core.shell import expand_home, this_program
from runner.core.spec import GROUPS
from runner.ui.layout import aligned
from runner.ui.output import show, show_prose
from runner.verbs.shared.verb import verb

Nodes = dict[str, dict[str, str | int]]
"""Entries of `cluster.nodes` by name, with the keys that differ from the defaults."""

FORMS = "gpu1, gpu[01-16], ada@10.0.0.5:22 or NAME=ADDRESS"
MACHINE = re.compile(
    r"(?:(?P<name>\w[\w.-]*)=)?(?:(?P<user>[^\W-][^\s:]*)@)?"
    r"(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<bare>[^\s@:\[\]]*:[^\s@\[\]]*:[^\s@\[\]]*)"
    r"|(?P<host>\w(?:[\w.,-]|\[[\d,-]+\])*))(?::(?P<port>\d+))?"
)
SSH_PORT = 22
FIRST_USER_PORT = 1024  # no machine has so many slots
LOGIN = re.compile(r"[^\W-]([\w.+\\@-]*[\w.+\\-])?\$?")
SCRIPTS = ("train.py", "main.py")
SHIPPED_CLUSTER = "local"  # this and the task are what works here at once
SHIPPED_TASK = "resnet18"
PRIMARY_FILE = Path("conf", "runner.yaml")

PRIMARY = """\
# What `runner` alone means here. Other keys below hold for all runs, such as lost_s: 60.
defaults:
  - cluster: {cluster}
  - task: {task}
"""
FABFILE = '''\
"""fab -l shows what there is."""

from runner.fab import *  # noqa: F403
'''
CLUSTER = """\
# The machines of cluster {cluster}: runner cluster={cluster} task={task}
defaults: [base]

# In rank order. The name is the SSH name unless `host` is set; gpu[01-16] stands for sixteen.
{nodes}

{nproc}  # ranks on a node; auto: one per GPU, one without GPUs
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
@click.option(
    "--hostfile", default="", metavar="hosts", help="a machine a line, perhaps with slots=4"
)
@click.option("--script", default="", metavar="train.py", help="the program to train with")
@click.option(
    "--python", default="", metavar="~/venv/bin/python", help="the Python there that has torch"
)
@click.option("--user", default="", metavar="ada", help="the login name on the hosts")
@click.option("--key", default="", metavar="~/.ssh/lab", help="the private key to log in with")
@click.option("--cluster", default="mine", metavar="mine", help="name of the new cluster's file")
@click.option("--task", default="train", metavar="train", help="name of the new task's file")
@click.option("--fabfile", is_flag=True, help="write a fabfile, too, for `fab VERB`")
@click.option("--json", "json_", is_flag=True, help="print JSON, and ask nothing")
def init(
    cluster: str,
    task: str,
    hosts: tuple[str, ...],
    hostfile: str,
    fabfile: bool,
    json_: bool,
    **given: str,
) -> int:
    """Write the first YAML of a project: a cluster, a task, and which of them is the default.

    On a terminal it asks for machines, their Python and the program, where no flag gives them. No
    machine is contacted. Existing files are kept.
    """
    for flag, name in (("--cluster", cluster), ("--task", task)):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name == "base":
            raise _wrong(flag, f"{name!r} is no name for a file; use a-z, 0-9, '_' and '-'")
    for flag, text in given.items():
        _check(flag, text)
    if hosts and hostfile:
        raise _wrong("--hostfile", "names the machines, and so does --hosts: give one of them")
    nodes = read_hostfile(hostfile) if hostfile else parse_hosts(" ".join(hosts))
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    is_asking = is_terminal() and not json_
    answers = dict(given)
    has_machines = True
    has_program = True
    if is_asking and not _is_there(cluster_file):
        nodes = nodes or parse_hosts(_ask(f"Machines: {FORMS} [this machine]", ""))
        has_machines = bool(nodes)
        if nodes and not given["python"]:
            answers["python"] = _ask("Python there that has torch", "python3", "python")
    if is_asking and not _is_there(task_file) and not given["script"]:
        answers["script"] = _ask_for_script()
        has_program = bool(answers["script"])
    cluster = cluster if has_machines else SHIPPED_CLUSTER
    task = task if has_program else SHIPPED_TASK
    texts = {}
    if has_machines:
        texts[cluster_file] = _cluster_yaml(cluster, task, nodes, answers)
    if has_program:
        texts[task_file] = _task_yaml(cluster, task, answers["script"])
    texts[PRIMARY_FILE] = PRIMARY.format(cluster=cluster, task=task)
    if fabfile:
        texts[Path("fabfile.py")] = FABFILE
    kept = [file for file in texts if _is_there(file)]
    written = {file: text for file, text in texts.items() if file not in kept}
    _write(written)
    if json_:
        show(json.dumps({"written": [*map(str, written)], "kept": [*map(str, kept)]}))
        return 0
    _print_outcome(written, kept, cluster, task)
    return 0


def _print_outcome(
    written: Mapping[Path, str], kept: Collection[Path], cluster: str, task: str
) -> None:
    """Print what became of each file, and what is next."""
    for file, text in written.items():
        edit = ": put your own below `nodes` or as `script`" if "# an example" in text else ""
        show_prose(f"wrote  {file}{edit}")
    for file in kept:
        show_prose(f"kept   {file}, as it is")
    if any(file.parent.name in GROUPS for file in kept):
        show_prose("--cluster OTHER and --task OTHER write other files")
    words = "" if PRIMARY_FILE in written else f" cluster={cluster} task={task}"
    program = this_program()
    steps = [
        (f"{program} check{words}", "# tries every machine, starts nothing"),
        (f"{program}{words} dry_run=true", "# shows every command, starts nothing"),
        (f"{program}{words}", ""),
    ]
    show("\n".join(["next:", *aligned(steps)]))


def is_terminal() -> bool:
    """Return whether somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask_for_script() -> str:
    found = next((name for name in SCRIPTS if names_file(name)), "")
    example = "" if found else f" [{SHIPPED_TASK}, an example]"
    return _ask(f"Program to train with, a file here{example}", found, "script")


def _ask(question: str, default: str, flag: str = "hosts") -> str:
    """Ask until the answer is legal; Enter takes the default."""

    def check(text: str) -> str:
        try:
            _check(flag, text)
        except ConfigError as error:
            raise click.UsageError(error.problems[0].message) from error
        return text

    has_default = bool(default)
    try:
        return str(click.prompt(question, default, show_default=has_default, value_proc=check))
    except click.Abort:
        raise Interrupted(130, "interrupted; nothing was written") from None


def _check(flag: str, text: str) -> None:
    """Raise ConfigError for an illegal value of a flag."""
    if not text:
        return
    if not text.isprintable():
        raise _wrong(f"--{flag}", f"{text!r} is no line of text")
    path = Path(expand_home(text))
    if flag == "hosts":
        parse_hosts(text)
    elif flag == "user" and not LOGIN.fullmatch(text):
        raise _wrong("--user", f"{text!r} is no login name")
    elif flag == "script" and not names_file(text):
        raise _wrong("--script", f"there is no file {text!r} here")
    elif flag == "key":
        try:
            is_key = re.match(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----", path.read_bytes())
        except OSError as error:
            raise _wrong("--key", f"{text} cannot be read: {error.strerror}") from error
        if not is_key:
            raise _wrong("--key", f"{text} is no private key: -----BEGIN … begins one")


def parse_hosts(text: str) -> Nodes:
    """Return the entries of `cluster.nodes` for machines; raise ConfigError."""
    nodes: Nodes = {}
    # Commas and blanks separate machines, except within brackets.
    for word in filter(None, re.split(r"[,\s]+(?![^\[\]]*\])", text)):
        if names_file(word):
            message = f"{word!r} is a file here: --hostfile {word} reads one"
            raise _wrong("--hosts", f"{message}; NAME={word} is a machine of that name")
        _add_machine(nodes, word, "--hosts")
    if text and not nodes:
        raise _wrong("--hosts", f"{text!r} names no machine")
    return nodes


def read_hostfile(file: str) -> Nodes:
    """Return the entries of `cluster.nodes` for a hostfile of DeepSpeed or MPI; raise ConfigError.

    A line is a machine, perhaps with slots=4, its ranks, and other KEY=VALUE, which are not used.
    """
    try:
        text = Path(expand_home(file)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _wrong("--hostfile", f"{file} cannot be read: {reason_of(error)}") from error
    nodes: Nodes = {}
    for number, line in enumerate(text.splitlines(), start=1):
        machine, *pairs = line.partition("#")[0].split() or [""]
        place = f"--hostfile {file}, line {number}"
        if bad := [word for word in pairs if not re.fullmatch(r"\w+=.*", word)]:
            raise _wrong(place, f"{bad[0]!r} is not like slots=4")
        slots = dict(word.split("=", 1) for word in pairs).get("slots", "")
        if not slots and (of_mpich := re.fullmatch(r"([^@:]+):(\d+)", machine)):
            machine, slots = of_mpich[1], of_mpich[2]
            if int(slots) == SSH_PORT or int(slots) >= FIRST_USER_PORT:
                message = f"is {slots} a port, or a number of slots? Write slots=N after it"
                raise _wrong(place, message)
        if slots and not re.fullmatch(r"[1-9]\d{0,3}", slots):
            raise _wrong(place, f"slots={slots} is no number of ranks")
        if machine:
            _add_machine(nodes, machine, place, int(slots or 0))
    if not nodes:
        raise _wrong("--hostfile", f"{file} names no machine")
    return nodes


def _add_machine(nodes: Nodes, word: str, place: str, slots: int = 0) -> None:
    """Add the entry of a machine, or of a range of them; raise ConfigError."""
    match = MACHINE.fullmatch(word)
    address = match and (match["ipv6"] or match["bare"] or match["host"])
    if not match or not address:
        raise _wrong(place, f"{word!r} is no machine; such as {FORMS}")
    is_address = re.fullmatch(r"[\d.]+|.*:.*", address) is not None
    port = int(match["port"] or 0)
    if match["name"] and "[" in address:
        raise _wrong(place, f"{word!r} gives one name to many machines")
    if match["port"] and not 1 <= port <= MAX_PORT:
        raise _wrong(place, f"{word!r}: {port} is no port from 1 to {MAX_PORT}")
    known = {(each, entry) for entry in nodes for each in expand_range(entry)}
    used = {member for member, _ in known}
    try:
        if is_address:
            ipaddress.ip_address(address)
        name = match["name"] or _node_name(address, len(nodes) + 1, used, is_address=is_address)
        members = expand_range(name)
    except ValueError as error:
        raise _wrong(place, f"{word!r}: {error}") from error
    body = {
        "host": "" if name == address else address,
        "user": match["user"],
        "port": port,
        "nproc_per_node": slots,
    }
    entry = {key: value for key, value in body.items() if value}
    machines = {(nodes[e].get("host", member), nodes[e].get("port", 0)) for member, e in known}
    new = {(entry.get("host", member), port) for member in members}
    if used.intersection(members) or new & machines:
        raise _wrong(place, f"{word!r} names a machine a second time")
    nodes[name] = entry


def _node_name(address: str, number: int, used: Collection[str], *, is_address: bool) -> str:
    """Return a name for a node without dots, so that overrides can name it."""
    if "[" in address:
        return address
    if is_address:
        return next(name for n in itertools.count(number) if (name := f"node{n}") not in used)
    short = address.partition(".")[0]
    return address if short in used else short


def _wrong(where: str, message: str) -> ConfigError:
    return ConfigError([Problem(where, message)])


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _yaml(key: str, value: object) -> str:
    """Return a key with its value as YAML, in which OmegaConf finds nothing to replace."""
    flow = None if isinstance(value, dict) else False  # None: mappings within it in braces
    dumped: str = yaml.safe_dump(
        {key: value}, width=10**6, allow_unicode=True, default_flow_style=flow, sort_keys=False
    )
    return dumped.replace("${", "\\${").rstrip("\n")


def _cluster_yaml(cluster: str, task: str, nodes: Nodes, answers: Mapping[str, str]) -> str:
    note = "" if nodes else "  # an example: put your own machines here"
    nodes = nodes or {"gpu1": {}, "gpu2": {}}
    counts = {body.get("nproc_per_node", 0) for body in nodes.values()}
    common = counts.pop() if len(counts) == 1 else 0
    if common:
        nodes = {
            name: {k: v for k, v in nodes[name].items() if k != "nproc_per_node"} for name in nodes
        }
    ssh = {"user": answers["user"] or None, "key": answers["key"] or None}
    return CLUSTER.format(
        cluster=cluster,
        task=task,
        nodes=_yaml("nodes", nodes).replace("nodes:", f"nodes:{note}", 1),
        nproc=f"nproc_per_node: {common}" if common else "#nproc_per_node: auto",
        python=_yaml("python", answers["python"] or "python3"),
        ssh=_yaml("ssh", ssh),
    )


def _task_yaml(cluster: str, task: str, script: str) -> str:
    note = "" if script else "  # an example: put your own program here"
    line = _yaml("script", script or SCRIPTS[0])
    return TASK.format(cluster=cluster, task=task, script=line + note)


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
        raise _wrong(
            str(error.filename or "conf"), f"cannot be written: {error.strerror}"
        ) from error
