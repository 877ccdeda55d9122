"""Wizard: the values of `init`, checked, and on a terminal asked for; it tries the first host."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from runner.cli.host_list import check_user, input_error, parse_hosts
from runner.config.nodes import expand_range
from runner.config.overrides import names_file
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.model.facts import Facts
from runner.core.model.spec import Node, Ssh
from runner.core.planning.readiness import without_torch
from runner.core.text import counted
from runner.ui.output import show_prose
from runner.workflows.host_trial import HostTrial, try_host

DEFAULT_PYTHON = "python3"
DEFAULT_SCRIPTS = ("train.py", "main.py")


def collect_answers(
    given: Mapping[str, str], not_asked: Collection[str], *, interactive: bool
) -> dict[str, str]:
    """Return the `hosts`, `user`, `key`, `python` and `script` given or answered, "" for none.

    With a `problem` of the first host, if it was tried in vain.

    Raises:
        ConfigError: A given value is illegal.
        Interrupted: The user had enough.
    """
    for name, text in given.items():
        if text:
            CHECKS[name](text)
    if not interactive:
        return dict(given)
    try:
        return _ask_all(given, not_asked)
    except (KeyboardInterrupt, EOFError):
        show_prose("")
        code = 130
    except Interrupted as error:  # while a host was tried
        code = error.exit_code
    raise Interrupted(code, "interrupted; nothing was written")


def _ask_all(given: Mapping[str, str], not_asked: Collection[str]) -> dict[str, str]:
    answers = dict(given)

    def ask(name: str, question: str, default: str = "") -> None:
        if not given[name] and name not in not_asked:
            answers[name] = _ask(question, default, CHECKS[name])

    asks_hosts = "hosts" not in not_asked
    ask("hosts", "Machines, such as gpu[01-04] or ada@10.0.0.5:22 [this machine]")
    if answers["hosts"]:
        ask("user", "Login name there [as in ~/.ssh/config]")
        ask("key", "Private key to log in with [as in ~/.ssh/config]")
        found = (_try_until_reached(answers) if asks_hosts else "") or DEFAULT_PYTHON
        is_reached = asks_hosts and "problem" not in answers
        ask("python", "Python there that has torch", found)
        while is_reached and not given["python"] and answers["python"] != found:
            found = answers["python"]
            answers["problem"] = _try_interpreter(answers)
            if answers["problem"]:
                show_prose(answers["problem"])
                ask("python", "Another Python there, or Enter for the same", found)
    script = next((name for name in DEFAULT_SCRIPTS if Path(name).is_file()), "")
    example = "" if script else " [resnet18, an example]"
    ask("script", f"Program to train with, a file here{example}", script)
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


def _try_until_reached(answers: dict[str, str]) -> str:
    """Try the first host, again with answers that were corrected, until it is reached or left.

    Return its interpreter that has torch, "" for none.
    """
    while True:
        node, ssh = _first_node(answers)
        show_prose(f"trying {node.name} …")
        trial = try_host(node, ssh, answers["python"] or DEFAULT_PYTHON)
        if trial.facts is not None:
            answers.pop("problem", None)
            return _show_found(node, trial, trial.facts)
        answers["problem"] = str(trial.problem)
        show_prose(answers["problem"])
        hosts = _ask("Machines, to try again [go on with these]", "", CHECKS["hosts"])
        if not hosts:
            return ""
        answers["hosts"] = hosts
        for name, question in {"user": "Login name there", "key": "Private key"}.items():
            default = answers[name]
            suffix = "" if default else " [as in ~/.ssh/config]"
            answers[name] = _ask(question + suffix, default, CHECKS[name])


def _try_interpreter(answers: Mapping[str, str]) -> str:
    """Try the interpreter that was typed on the first host; return why it will not do, or ""."""
    node, ssh = _first_node(answers)
    show_prose(f"trying {answers['python']} …")
    trial = try_host(node, ssh, answers["python"], search=False)
    if trial.with_torch:
        return ""
    if trial.facts is None:
        return str(trial.problem)
    error = trial.facts.python.error
    problems = [Problem(node.name, error)] if error else without_torch(node, trial.facts)
    return "\n".join(map(str, problems))


def _show_found(node: Node, trial: HostTrial, facts: Facts) -> str:
    """Say what is on a host; return its interpreter that has torch, "" for none."""
    found = trial.with_torch
    show_prose(f"{node.name}: reached as {facts.user}, {counted(len(facts.gpus), 'GPU')}")
    if found is not facts.python:
        error = facts.python.error
        problems = [Problem(node.name, error)] if error else without_torch(node, facts)
        show_prose("\n".join(str(replace(each, hint="") if found else each) for each in problems))
    if found is None or not found.executable.isprintable():
        return ""
    show_prose(f"{node.name}: torch {found.torch} in {found.executable} (Python {found.version})")
    if found is facts.python:
        return DEFAULT_PYTHON
    home = f"{facts.home}/"
    is_home = found.executable.startswith(home)
    return f"~/{found.executable[len(home) :]}" if is_home else found.executable


def _first_node(answers: Mapping[str, str]) -> tuple[Node, Ssh]:
    entry, settings = next(iter(parse_hosts(answers["hosts"]).items()))
    name = expand_range(entry)[0]
    user, port = str(settings.get("user", "")), int(settings.get("port", 0))
    host = str(settings.get("host", name))
    key = str(Path(answers["key"]).expanduser().absolute()) if answers["key"] else None
    ssh = Ssh(user=answers["user"] or None, key=key)
    return Node(name, host, user=user or None, port=port or None), ssh


def _check_key(text: str) -> None:
    if not text.isprintable() or not (path := Path(text).expanduser()).is_file():
        raise input_error("--key", f"there is no file {text}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise input_error("--key", f"{text} cannot be read: {error.strerror}") from error
    if not re.match(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----", content):
        raise input_error("--key", f"{text} is no private key: -----BEGIN … begins one")


def _check_interpreter(text: str) -> None:
    if not text.isprintable() or not text.strip() or text == "???":
        raise input_error("--python", f"{text!r} is no path of one line")


def _check_script(text: str) -> None:
    if not text.isprintable() or not names_file(text):
        raise input_error("--script", f"there is no file {text!r} here")


CHECKS: Mapping[str, Callable[[str], object]] = {
    "hosts": parse_hosts,
    "user": check_user,
    "key": _check_key,
    "python": _check_interpreter,
    "script": _check_script,
}
"""For each value what raises ConfigError where it is illegal."""
