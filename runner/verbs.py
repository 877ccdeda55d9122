"""The verbs: what `fab VERB` and `python -m runner VERB` do.

A project's own fabfile has them all by `from runner.verbs import *`. Each takes `--cluster NAME`
and `--set KEY=VALUE`, which are the words `cluster=NAME` and `KEY=VALUE` of a launch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from runner.config.folders import conf_folders, shipped
from runner.core.codec import encode
from runner.core.composed import Composed, DryRun
from runner.core.errors import ConfigError, Problem, RunnerError
from runner.core.facts import FactsRequest
from runner.core.spec import Node, Spec
from runner.ui.problems import render

if TYPE_CHECKING:
    from runner.config.compose import Composer

__all__ = ["config", "deploy", "exec_", "explain", "init", "plan"]

COMMON = {
    "cluster": "the cluster: a file in conf/cluster, yours or a shipped one",
    "set_": "KEY=VALUE as in a launch, such as task=train; may be given again",
    "config_dir": "look for YAML in this folder first; may be given again",
    "json_": "print what a program can read",
}


_task = cast("Callable[..., Task[Any]]", task)  # its own types know no Task


def _verb(name: str, **texts: str) -> Callable[[Callable[..., int]], Task[Any]]:
    """Make a function a task of Fabric's, with our messages and exit codes."""

    def wrap(body: Callable[..., int]) -> Task[Any]:
        @functools.wraps(body)
        def told(context: Context, *args: Any, **options: Any) -> None:
            try:
                code = body(context, *args, **options)
            except RunnerError as error:
                if error.problems:
                    print(render(error.problems), file=sys.stderr)
                code = error.exit_code
            except KeyboardInterrupt:
                code = 130
            except BrokenPipeError:  # such as `| head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                code = 128 + signal.SIGPIPE
            if code:
                raise Exit(code=code)

        words = {**COMMON, **texts}
        parameters = inspect.signature(body).parameters
        return _task(
            told,
            name=name,
            auto_shortflags=False,
            iterable=[each for each in ("set_", "config_dir", "hosts") if each in parameters],
            help={each: words[each] for each in parameters if each in words},
        )

    return wrap


@contextlib.contextmanager
def _composer(config_dir: Sequence[str] | None) -> Iterator[Composer]:
    from runner.config.compose import open_composer

    with open_composer(conf_folders(config_dir or ()), shipped()) as composer:
        yield composer


def _words(cluster: str, set_: Sequence[str] | None) -> list[str]:
    return [*([f"cluster={cluster}"] if cluster else []), *(set_ or ())]


def _composed(
    cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> Composed:
    with _composer(config_dir) as composer:
        composed = composer.compose(_words(cluster, set_))
    for note in composed.notes:
        print(f"note: {note}", file=sys.stderr)
    return composed


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(
            [
                Problem(
                    "--timeout",
                    f"must be a number of seconds, not {text!r}",
                    "such as --timeout 60",
                )
            ]
        )
    return seconds


def _storage_request(spec: Spec, release: str, node: Node) -> FactsRequest:
    return FactsRequest(
        node=node.name, python="", workdir=spec.workdir, release=release, hosts_only=True
    )


@_verb("deploy")
def deploy(
    _context: Context,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Push the code you stand in to every host.

    A launch does so by itself, where a host lacks it.
    """
    from runner.contact import contact
    from runner.control.snapshot import Snapshot
    from runner.core.readiness import storage_problems
    from runner.ui import tables
    from runner.ui.console import open_console

    composed = _composed(cluster, set_, config_dir)
    spec = composed.spec
    if not spec.deploy.on:
        what = f"cluster {spec.cluster} takes no code: it is in {spec.project} on its hosts"
        hint = "cluster.deploy=auto without cluster.project pushes it"
        if not cluster and not any(word.startswith("cluster=") for word in set_ or ()):
            hint = "which cluster? python -m runner deploy --cluster NAME"
        raise ConfigError([Problem("cluster.deploy", what, hint)])
    snapshot = Snapshot.take(spec, Path.cwd(), composed.run_dir)
    console = open_console(composed.ui, None, [node.name for node in spec.nodes])
    with contact(spec, console) as hosts:
        for note in snapshot.notes:
            console.say(f"note: {note}")
        facts = hosts.gather(
            lambda node: _storage_request(spec, snapshot.code.release, node), storage_problems
        )
        began = time.monotonic()
        received = hosts.push(snapshot, facts, verify=True)
        seconds = time.monotonic() - began
    deployed = tables.Deployed(
        release=snapshot.code.release,
        commit=snapshot.code.commit,
        files=len(snapshot.manifest.files),
        size=snapshot.manifest.size,
        seconds=round(seconds, 3),
        sent={
            node.name: received[node.name].sent if received[node.name].new else None
            for node in spec.nodes
        },
    )
    print(json.dumps(encode(deployed)) if json_ else tables.deployed(deployed))
    return 0


@_verb(
    "exec",
    command="what to run, as one line for the shell; or after `--`, word by word",
    timeout="seconds it may take, 600 unless given",
)
def exec_(
    _context: Context,
    command: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    timeout: str = "600",
    json_: bool = False,
) -> int:
    """Run a command on every host, equal answers folded.

    Such as: exec --cluster lab3 -- nvidia-smi -L
    """
    from runner.contact import contact
    from runner.control.remote import Execution
    from runner.core.readiness import setup_problems
    from runner.ui import tables
    from runner.ui.console import open_console

    words = REST[:] or ([command] if command else [])
    if REST and command:
        what = f"two commands: {command!r}, and the words after `--`"
        raise ConfigError([Problem("exec", what, "give one of them")])
    if not words:
        hint = "such as: python -m runner exec --cluster lab3 -- nvidia-smi -L"
        raise ConfigError([Problem("exec", "there is no command to run", hint)])
    argv = ["/bin/sh", "-c", words[0]] if len(words) == 1 else words
    limit_s = _seconds(timeout)
    composed = _composed(cluster, set_, config_dir)
    spec = composed.spec
    console = open_console(composed.ui, None, [node.name for node in spec.nodes])
    with contact(spec, console) as hosts:
        hosts.gather(
            lambda node: replace(_storage_request(spec, "", node), setup=spec.setup),
            setup_problems,
        )
        console.phase("running")
        execution = Execution(hosts.sessions, hosts.inbox, spec.lost_s, console.state)
        execution.run(argv, limit_s)
    answers = [execution.answers[node.name] for node in spec.nodes]
    print(json.dumps(tables.as_data(answers)) if json_ else tables.answers(answers))
    return tables.exit_code(answers, execution.signal)


@_verb("plan", offline="ask no host: show what can be known from here")
def plan(
    _context: Context,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    offline: bool = False,
    json_: bool = False,
) -> int:
    """Show what each host would be told, ready to paste.

    Nothing is started, and nothing written anywhere.
    """
    from runner.launch import rehearse

    composed = _composed(cluster, set_, config_dir)
    offline = offline or composed.dry_run is DryRun.OFFLINE
    dry_run = DryRun.OFFLINE if offline else DryRun.ON
    rehearse(replace(composed, dry_run=dry_run, notes=()), as_json=json_)
    return 0


@_verb(
    "config",
    key="only what stands below this key",
    resolve="with every ${...} replaced by what it stands for",
)
def config(
    _context: Context,
    key: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    resolve: bool = False,
    json_: bool = False,
) -> int:
    """Print the whole configuration, or a part of it."""
    with _composer(config_dir) as composer:
        text = composer.yaml(_words(cluster, set_), key, resolve=resolve)
    if json_:
        import yaml

        text = json.dumps(yaml.safe_load(text))
    print(text.rstrip("\n"))
    return 0


@_verb("explain", key="such as cluster.python; everything below it is told")
def explain(
    _context: Context,
    key: str,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Say which file or word set a value, and what it overrides."""
    from runner.ui import tables

    with _composer(config_dir) as composer:
        origins = composer.origins(_words(cluster, set_), key)
    print(json.dumps(encode(origins)) if json_ else tables.origins(origins))
    return 0


@_verb(
    "init",
    cluster="the name of the new cluster's file",
    task_="the name of the new task's file",
    hosts="names, gpu[01-16], user@address:port, or NAME=ADDRESS; may be given again",
    user="the login name on the hosts",
    key="the private key to log in with",
    python="the interpreter that has torch, on the hosts",
    script="the program to train with",
    json_="print what a program can read, and ask nothing",
)
def init(
    _context: Context,
    cluster: str = "mine",
    task_: str = "train",
    hosts: Sequence[str] | None = None,
    user: str = "",
    key: str = "",
    python: str = "",
    script: str = "",
    json_: bool = False,
) -> int:
    """Write the first YAML of a project, and a fabfile.

    On a terminal it asks for what no flag says; a file that is there is kept.
    """
    from runner.init import init as write
    from runner.launch import rehearse

    ask = sys.stdin.isatty() and sys.stdout.isatty() and not json_
    with contextlib.redirect_stdout(sys.stderr if json_ else sys.stdout):
        outcome = write(
            cluster=cluster,
            task=task_,
            hosts=hosts or (),
            user=user,
            key=key,
            python=python,
            script=script,
            ask=ask,
        )
    if json_:
        data = {"written": outcome.written, "kept": outcome.kept}
        print(json.dumps({name: [str(path) for path in paths] for name, paths in data.items()}))
    if outcome.try_now:
        composed = _composed("", outcome.words, ())
        rehearse(replace(composed, dry_run=DryRun.OFFLINE), as_json=False)
    return 0


VERBS: dict[str, Task[Any]] = {
    each.name: each for each in (deploy, exec_, plan, config, explain, init)
}
"""Every verb by the name it is called by."""

REST: list[str] = []
"""The words after `--`."""


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after `--`."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _take_rest_from_fab() -> None:
    """Have `fab exec -- WORDS` mean our `exec`: Fabric would run WORDS by itself on `-H` hosts."""
    main = sys.modules.get("fabric.main")
    core = getattr(getattr(main, "program", None), "core", None)
    before, rest = split(sys.argv[1:])
    if core is not None and rest and "exec" in before:
        REST[:] = rest
        core.remainder = ""


_take_rest_from_fab()
