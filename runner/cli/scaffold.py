"""Scaffold: the first YAML of a project, as `init` writes it, from templates."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.config.nodes import expand_range
from runner.config.search_path import conf_folders, shipped_folder
from runner.core.errors import ConfigError, Interrupted, Problem

EXAMPLE_HOSTS = "gpu1 gpu2"
YES_ANSWERS = ("y", "yes")
LAST_PORT = 65535
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
DEFAULT_SCRIPTS = ("train.py", "main.py")


FABFILE = '"""fab -l shows what there is."""\nfrom runner.verbs import *  # noqa: F403\n'
CLUSTER = """\
# The machines of cluster {cluster}: python -m runner cluster={cluster} task={task}
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
# Task {task}: python -m runner cluster={cluster} task={task}
defaults: [base]

# A Python file, relative to the folder you stand in. In its place: module (such as package.train),
# or command for what is not Python.
script: {script}

# Its arguments. true makes a flag alone, a list several values, null leaves one out.
# For one run: task.args.lr=0.2
#args: {{lr: 0.1, epochs: 3}}  # --lr 0.1 --epochs 3
#args_style: argparse      # hydra: lr=0.1 epochs=3; raw: a list of words
#local_rank_arg: null      # such as --local_rank, for an old script that takes it so
#entry: torchrun           # launch: torch.distributed.launch; plain: one process a node, without

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
    try_now: bool = False  # the user wants to see the first dry run


def scaffold(
    cluster: str = "mine",
    task: str = "train",
    *,
    hosts: Sequence[str] = (),
    interactive: bool,
    **others: str,
) -> ScaffoldResult:
    """Write a cluster, a task and a fabfile into the working directory, and print the next steps.

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
    _check_name("--cluster", cluster)
    _check_name("--task", task)
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    files = (cluster_file, task_file, Path("fabfile.py"))
    existing = tuple(file for file in files if file.exists() or file.is_symlink())
    given = dict.fromkeys(("hosts", "user", "key", "python", "script"), "")
    given |= {"hosts": " ".join(hosts), **others}
    not_asked = {"hosts", "user", "key", "python"} if cluster_file in existing else set()
    not_asked |= {"script"} if task_file in existing else set()
    answers, try_now = _collect_answers(given, not_asked, interactive=interactive)
    texts = {
        cluster_file: _cluster_yaml(cluster, task, answers),
        task_file: _task_yaml(cluster, task, answers),
        files[2]: FABFILE,
    }
    nearest_conf = next(iter(conf_folders([])))
    new = {file: text for file, text in texts.items() if file not in existing}
    _write(new)
    outcome = ScaffoldResult(tuple(new), existing, (f"cluster={cluster}", f"task={task}"), try_now)
    edits = {
        cluster_file: "" if answers["hosts"] else ": put your own machines below `nodes`",
        task_file: "" if answers["script"] else ": name your own program as `script`",
    }
    for file in outcome.written:
        print(f"wrote  {file}{edits.get(file, '')}")
    for file in outcome.existing:
        print(f"kept   {file}, as it is")
    if nearest_conf not in (Path.cwd() / "conf", shipped_folder()):
        note = "is not read from here any more: conf is nearer (--config-dir adds it)"
        print(f"{nearest_conf} {note}")
    run = f"python -m runner {' '.join(outcome.overrides)}"
    print("next:")
    print(f"  {run} dry_run=offline   # prints the plan, contacts no host")
    print(f"  {run} dry_run=true      # asks the hosts, starts nothing")
    print(f"  {run}")
    return outcome


def _collect_answers(
    given: Mapping[str, str], not_asked: Collection[str], *, interactive: bool
) -> tuple[dict[str, str], bool]:
    """Return the values given or answered, "" for none, and whether to run a dry run now."""
    checks: dict[str, Callable[[str], object]] = {"hosts": parse_hosts, "user": _check_user}
    checks |= {"key": _check_key, "python": _check_interpreter, "script": _check_script}
    for name, text in given.items():
        if text:
            checks[name](text)
    if not interactive:
        return dict(given), False
    questions = _questions()
    answers: dict[str, str] = {}
    try:
        for name, text in given.items():
            needs_answer = not text and name not in not_asked
            answers[name] = _ask(*questions[name], checks[name]) if needs_answer else text
        now = _ask("Run a dry run now? It contacts no host", "yes", _check_yes_no) in YES_ANSWERS
    except (KeyboardInterrupt, EOFError):
        print()
        raise Interrupted(130, "interrupted; nothing was written") from None
    return answers, now


def _questions() -> dict[str, tuple[str, str]]:
    """Return the question for each value, and what an empty answer stands for."""
    program = next((name for name in DEFAULT_SCRIPTS if Path(name).is_file()), "")
    machines = "The machines: names, gpu[01-04], user@address:port, or NAME=ADDRESS"
    none = "" if program else f"; empty: {DEFAULT_SCRIPTS[0]}, as an example"
    return {
        "hosts": (f"{machines}; empty: {EXAMPLE_HOSTS}, as examples", ""),
        "user": ("The login name there; empty: as your ~/.ssh/config says", ""),
        "key": ("A private key to log in with; empty: as your ~/.ssh/config says", ""),
        "python": ("The interpreter that has torch, on the hosts", "python3"),
        "script": (f"The program to train with, a file here{none}", program),
    }


def _ask(question: str, default: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is legal."""
    while True:
        suffix = f" [{default}]" if default else ""
        text = input(f"{question}{suffix}: ").strip() or default
        try:
            if text:
                check(text)
        except ConfigError as error:
            print("\n".join(f"  {problem.message}" for problem in error.problems))
        else:
            return text


def parse_hosts(text: str) -> dict[str, dict[str, str | int]]:
    """Return the entries of `cluster.nodes` for hosts, or raise ConfigError.

    They are names, ranges, or user@address:port, with a name of your own as NAME=ADDRESS; commas
    separate several in one word.
    """
    nodes: dict[str, dict[str, str | int]] = {}
    used_names: set[str] = set()
    machines: set[tuple[str, str]] = set()
    # Commas and spaces separate hosts, except within brackets.
    for number, word in enumerate(filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)), start=1):
        chosen_name, equals, machine = word.rpartition("=")
        if equals and not NAME_PATTERN.fullmatch(chosen_name):
            raise _input_error("--hosts", f"{word!r}: {chosen_name!r} is no name for a node")
        user, address, port = _split_address(machine)
        if chosen_name and "[" in address and ":" not in address:
            raise _input_error("--hosts", f"{word!r} gives one name to many machines")
        name = chosen_name or _node_name(address, number, used_names)
        members = _expand_members(word, name)
        entry_machines = {(member if name == address else address, port) for member in members}
        is_double = len(entry_machines) < len(members) or entry_machines & machines
        if is_double or used_names.intersection(members):
            raise _input_error("--hosts", f"{word!r} names a machine a second time")
        used_names |= set(members)
        machines |= entry_machines
        host = address if name != address else ""
        settings: dict[str, str | int] = {"host": host, "user": user, "port": int(port or 0)}
        nodes[name] = {key: value for key, value in settings.items() if value}
    if not nodes:
        raise _input_error("--hosts", f"{text!r} names no machine")
    return nodes


def _split_address(word: str) -> tuple[str, str, str]:
    """Split user@address:port, where the address may be one of IPv6."""
    user, _, rest = word.rpartition("@")
    if match := re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?::(.+))?", rest):
        address, port = match[1], match[2] or ""
    elif rest.count(":") > 1:
        address, port = rest, ""
    else:
        address, colon, port = rest.partition(":")
        if colon and not port:
            raise _input_error("--hosts", f"{word!r} names no port after the colon")
    if user or word.startswith("@"):
        _check_user(user, "--hosts")
    if port and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= LAST_PORT):
        raise _input_error("--hosts", f"{word!r}: {port!r} is no port from 1 to {LAST_PORT}")
    if re.fullmatch(r"[\d.]+", address) or ":" in address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise _input_error("--hosts", f"{word!r}: {address!r} is no address") from None
    elif "[" not in address and not NAME_PATTERN.fullmatch(address):
        raise _input_error("--hosts", f"{word!r}: {address!r} is no name or address of a machine")
    return user, address, port


def _node_name(address: str, number: int, used_names: Collection[str]) -> str:
    """Return a node name without dots, so that overrides can name it."""
    if "[" in address:
        return address
    numeric = re.fullmatch(r"[\d.]+|.*:.*", address)
    candidates = [] if numeric else [address.partition(".")[0], address]
    generated = (f"node{n}" for n in itertools.chain([number], itertools.count(1)))
    return next(name for name in itertools.chain(candidates, generated) if name not in used_names)


def _expand_members(word: str, name: str) -> list[str]:
    """Return the names of the nodes of an entry."""
    try:
        names = expand_range(name)
    except ValueError as error:
        raise _input_error("--hosts", f"{word!r} is no range of names: {error}") from error
    if bad := [member for member in names if not NAME_PATTERN.fullmatch(member)]:
        raise _input_error("--hosts", f"{word!r}: {bad[0]!r} is no name or address of a machine")
    return names


def _check_name(flag: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise _input_error(flag, f"{name!r} is no name for a file of YAML; use a-z, 0-9 and '-'")
    if name == "base":
        raise _input_error(flag, "base is the name of the defaults; choose another")


def _check_user(text: str, flag: str = "--user") -> None:
    if not re.fullmatch(r"[^\W-][\w.+\\-]*\$?", text):
        raise _input_error(flag, f"{text!r} is no login name")


def _check_key(text: str) -> None:
    if not text.isprintable() or not Path(text).expanduser().is_file():
        raise _input_error("--key", f"there is no file {text}")


def _check_interpreter(text: str) -> None:
    if not text.isprintable() or not text.strip() or text == "???":
        raise _input_error("--python", f"{text!r} is no path of one line")


def _check_script(text: str) -> None:
    if not text.isprintable() or not Path(text).is_file():
        raise _input_error("--script", f"there is no file {text!r} here")


def _check_yes_no(text: str) -> None:
    if text not in (*YES_ANSWERS, "n", "no"):
        raise _input_error("", f"{text!r} is neither yes nor no")


def _input_error(flag: str, message: str) -> ConfigError:
    return ConfigError([Problem(flag, message)])


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
        python=yaml_scalar(answers["python"] or "python3"),
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
