"""`python -m runner init`: the first YAML of a project, with comments that teach."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from runner.cli.templates import CLUSTER, FABFILE, TASK
from runner.config.nodes import expand
from runner.config.search_path import conf_folders, shipped
from runner.core.errors import ConfigError, Interrupted, Problem

EXAMPLES = "gpu1 gpu2"
YES = ("y", "yes")
LAST_PORT = 65535
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
SCRIPTS = ("train.py", "main.py")


@dataclass(frozen=True)
class Question:
    """One thing to ask for: its flag, what it is for, what Enter means, and what is legal."""

    flag: str
    text: str
    enter: str
    check: Callable[[str], object]


@dataclass(frozen=True)
class Outcome:
    """What `init` did.

    Attributes:
        written: The files that are new.
        kept: Those that were there, and are as they were.
        words: The words that choose the new cluster and task on a command line.
        try_now: Whether the user wants to see the first dry run now.
    """

    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    words: tuple[str, ...]
    try_now: bool = False


def init(
    *,
    cluster: str = "mine",
    task: str = "train",
    hosts: Sequence[str] = (),
    user: str = "",
    key: str = "",
    python: str = "",
    script: str = "",
    ask: bool,
) -> Outcome:
    """Write a cluster, a task and a fabfile into the folder the user stands in, and say so.

    Args:
        cluster: The name of the cluster's file.
        task: The name of the task's file.
        hosts: Names, ranges, or user@address:port, with a name of your own as NAME=ADDRESS;
            several in a word are parted by commas.
        user: The login name.
        key: The private key to log in with.
        python: The interpreter on the hosts.
        script: The program, relative to here.
        ask: Whether a person is there to ask for what is not given.

    Raises:
        ConfigError: Something given is no good, or cannot be written; nothing is.
        Interrupted: The person had enough; nothing is written.
    """
    _check_name("--cluster", cluster)
    _check_name("--task", task)
    cluster_file = Path("conf", "cluster", f"{cluster}.yaml")
    task_file = Path("conf", "task", f"{task}.yaml")
    files = (cluster_file, task_file, Path("fabfile.py"))
    kept = tuple(file for file in files if file.exists() or file.is_symlink())
    given = {"hosts": " ".join(hosts), "user": user, "key": key}
    given |= {"python": python, "script": script}
    known = {"hosts", "user", "key", "python"} if cluster_file in kept else set()
    known |= {"script"} if task_file in kept else set()
    answers, try_now = _answers(given, known, ask=ask)
    texts = {
        cluster_file: _cluster_yaml(cluster, task, answers),
        task_file: _task_yaml(cluster, task, answers),
        files[2]: FABFILE,
    }
    hidden = _hidden()
    new = {file: text for file, text in texts.items() if file not in kept}
    _write(new)
    outcome = Outcome(tuple(new), kept, (f"cluster={cluster}", f"task={task}"), try_now)
    edits = {
        cluster_file: "" if answers["hosts"] else "put your own machines below `nodes`",
        task_file: "" if answers["script"] else "name your own program as `script`",
    }
    _tell(outcome, edits, hidden)
    return outcome


def _answers(
    given: Mapping[str, str], known: Collection[str], *, ask: bool
) -> tuple[dict[str, str], bool]:
    """Return what was given or answered, and whether to try it now; "" is for no answer."""
    questions = _questions()
    for key, text in given.items():
        if text:
            questions[key].check(text)
    if not ask:
        return dict(given), False
    try:
        answers = {
            key: text or ("" if key in known else _asked(questions[key]))
            for key, text in given.items()
        }
        now = _asked(Question("", "Run the first dry run now? It contacts nobody", "yes", _yes_no))
    except (KeyboardInterrupt, EOFError):
        print()
        stopped = Interrupted(130)
        stopped.problems = (Problem("", "interrupted; nothing was written"),)
        raise stopped from None
    return answers, now in YES


def _questions() -> dict[str, Question]:
    program = next((name for name in SCRIPTS if Path(name).is_file()), "")
    machines = "The machines: names, gpu[01-04], user@address:port, or NAME=ADDRESS"
    user = "The login name there; empty: as your ~/.ssh/config says"
    key = "A private key to log in with; empty: as your ~/.ssh/config says"
    python = "The interpreter that has torch, on the hosts"
    script = "The program to train with, a file here"
    none = "" if program else f"; empty: {SCRIPTS[0]}, as an example"
    return {
        "hosts": Question("--hosts", f"{machines}; empty: {EXAMPLES}, as examples", "", nodes_of),
        "user": Question("--user", user, "", _user),
        "key": Question("--key", key, "", _key),
        "python": Question("--python", python, "python3", _interpreter),
        "script": Question("--script", script + none, program, _script),
    }


def _asked(question: Question) -> str:
    """Ask until the answer is legal."""
    while True:
        default = f" [{question.enter}]" if question.enter else ""
        text = input(f"{question.text}{default}: ").strip() or question.enter
        try:
            if text:
                question.check(text)
        except ConfigError as error:
            print("\n".join(f"  {problem.what}" for problem in error.problems))
        else:
            return text


def nodes_of(text: str) -> dict[str, dict[str, str | int]]:
    """Return the entries of `cluster.nodes` for names, ranges and user@address:port.

    Raises:
        ConfigError: One of them is none of these, or is there twice.
    """
    nodes: dict[str, dict[str, str | int]] = {}
    taken: set[str] = set()
    machines: set[tuple[str, str]] = set()
    # Commas and spaces part hosts, but not those within brackets.
    for number, word in enumerate(filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)), start=1):
        own, equals, machine = word.rpartition("=")
        if equals and not NAME.fullmatch(own):
            raise _wrong("--hosts", f"{word!r}: {own!r} is no name for a node")
        user, address, port = _parts(machine)
        if own and "[" in address and ":" not in address:
            raise _wrong("--hosts", f"{word!r} gives one name to many machines")
        name = own or _name(address, number, taken)
        members = _members(word, name)
        here = {(each if name == address else address, port) for each in members}
        if len(here) < len(members) or here & machines or set(members) & taken:
            raise _wrong("--hosts", f"{word!r} names a machine a second time")
        taken |= set(members)
        machines |= here
        nodes[name] = {
            **({"host": address} if name != address else {}),
            **({"user": user} if user else {}),
            **({"port": int(port)} if port else {}),
        }
    if not nodes:
        raise _wrong("--hosts", f"{text!r} names no machine")
    return nodes


def _parts(word: str) -> tuple[str, str, str]:
    """Split user@address:port, where the address may be one of IPv6."""
    user, _, rest = word.rpartition("@")
    if found := re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?::(.+))?", rest):
        address, port = found[1], found[2] or ""
    elif rest.count(":") > 1:
        address, port = rest, ""
    else:
        address, colon, port = rest.partition(":")
        if colon and not port:
            raise _wrong("--hosts", f"{word!r} names no port after the colon")
    if user or word.startswith("@"):
        _user(user, "--hosts")
    if port and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= LAST_PORT):
        raise _wrong("--hosts", f"{word!r}: {port!r} is no port from 1 to {LAST_PORT}")
    if re.fullmatch(r"[\d.]+", address) or ":" in address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise _wrong("--hosts", f"{word!r}: {address!r} is no address") from None
    elif "[" not in address and not NAME.fullmatch(address):
        raise _wrong("--hosts", f"{word!r}: {address!r} is no name or address of a machine")
    return user, address, port


def _name(address: str, number: int, taken: Collection[str]) -> str:
    """Return a name for a node that the command line can speak of: one without dots."""
    if "[" in address:
        return address
    numeric = re.fullmatch(r"[\d.]+|.*:.*", address)
    own = [] if numeric else [address.partition(".")[0], address]
    made = (f"node{n}" for n in itertools.chain([number], itertools.count(1)))
    return next(name for name in itertools.chain(own, made) if name not in taken)


def _members(word: str, name: str) -> list[str]:
    """Return the nodes an entry makes."""
    try:
        names = expand(name)
    except ValueError as error:
        raise _wrong("--hosts", f"{word!r} is no range of names: {error}") from error
    if bad := [each for each in names if not NAME.fullmatch(each)]:
        raise _wrong("--hosts", f"{word!r}: {bad[0]!r} is no name or address of a machine")
    return names


def _check_name(flag: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise _wrong(flag, f"{name!r} is no name for a file of YAML; use a-z, 0-9 and '-'")
    if name == "base":
        raise _wrong(flag, "base is the name of the defaults; choose another")


def _user(text: str, flag: str = "--user") -> None:
    if not re.fullmatch(r"[^\W-][\w.+\\-]*\$?", text):
        raise _wrong(flag, f"{text!r} is no login name")


def _key(text: str) -> None:
    if not text.isprintable() or not Path(text).expanduser().is_file():
        raise _wrong("--key", f"there is no file {text}")


def _interpreter(text: str) -> None:
    if not text.isprintable() or not text.strip() or text == "???":
        raise _wrong("--python", f"{text!r} is no path of one line")


def _script(text: str) -> None:
    if not text.isprintable() or not Path(text).is_file():
        raise _wrong("--script", f"there is no file {text!r} here")


def _yes_no(text: str) -> None:
    if text not in (*YES, "n", "no"):
        raise _wrong("", f"{text!r} is neither yes nor no")


def _wrong(flag: str, what: str) -> ConfigError:
    return ConfigError([Problem(flag, what)])


def scalar(value: str | int, *, inside: bool = False) -> str:
    """Return a value as YAML that Hydra reads as just that.

    Args:
        value: A text or a number.
        inside: Whether it stands in brackets or braces.
    """
    if isinstance(value, int):
        return str(value)
    text = value.replace("${", "\\${")
    dumped: str = yaml.safe_dump(
        [text] if inside else text,
        width=10**6,
        allow_unicode=True,
        default_flow_style=True,
        # Hydra takes more for numbers than YAML does, such as 1e3.
        default_style="'" if _is_number(text) else None,
    )
    dumped = dumped.removesuffix("\n").removesuffix("\n...")
    return dumped[1:-1] if inside else dumped


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _inside_braces(body: Mapping[str, str | int]) -> str:
    pairs = (f"{key}: {scalar(value, inside=True)}" for key, value in body.items())
    return f"{{{', '.join(pairs)}}}"


def _cluster_yaml(cluster: str, task: str, answers: Mapping[str, str]) -> str:
    note = "" if answers["hosts"] else "  # an example: put your own machine here"
    nodes = [
        f"  {scalar(name)}: {_inside_braces(body)}{note}"
        for name, body in nodes_of(answers["hosts"] or EXAMPLES).items()
    ]
    return CLUSTER.format(
        cluster=cluster,
        task=task,
        nodes="\n".join(nodes),
        python=scalar(answers["python"] or "python3"),
        user=scalar(answers["user"]) if answers["user"] else "null",
        key=scalar(answers["key"]) if answers["key"] else "null",
    )


def _task_yaml(cluster: str, task: str, answers: Mapping[str, str]) -> str:
    script = scalar(answers["script"] or SCRIPTS[0])
    note = "" if answers["script"] else "  # an example: put your own program here"
    return TASK.format(cluster=cluster, task=task, script=script + note)


def _hidden() -> list[Path]:
    """Return the folders of YAML that a `conf` here takes the place of."""
    return [folder for folder in conf_folders([]) if folder not in (Path.cwd() / "conf", shipped())]


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files or none; what is there meanwhile is not touched."""
    made: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError as error:
        for path in made:
            path.unlink()
        where = str(error.filename or "conf")
        raise ConfigError([Problem(where, f"cannot be written: {error.strerror}")]) from error


def _tell(outcome: Outcome, edits: Mapping[Path, str], hidden: Sequence[Path]) -> None:
    for file in outcome.written:
        print(f"wrote  {file}" + (f": {edit}" if (edit := edits.get(file)) else ""))
    for file in outcome.kept:
        print(f"kept   {file}, as it is")
    for folder in hidden:
        print(f"from here, {folder} is no longer looked at: conf is nearer (--config-dir does)")
    run = f"python -m runner {' '.join(outcome.words)}"
    print("next:")
    print(f"  {run} dry_run=offline   # shows the plan, contacts nobody")
    print(f"  {run} dry_run=true      # asks the hosts, starts nothing")
    print(f"  {run}")
