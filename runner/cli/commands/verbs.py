"""The verbs: what `fab VERB` and `python -m runner VERB` do.

A project's own fabfile has them all by `from runner.verbs import *`. Each takes `--cluster NAME`
and `--set KEY=VALUE`, which are the words `cluster=NAME` and `KEY=VALUE` of a launch.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import Task

from runner.cli.command import (
    composed_of,
    composer_of,
    contact_of,
    says_cluster,
    span,
    verb,
    words_of,
)
from runner.cli.commands.diagnosing import VERBS as DIAGNOSING
from runner.cli.commands.diagnosing import check, stacks, why
from runner.cli.commands.runs import VERBS as RUN_VERBS
from runner.cli.commands.runs import attach, logs, ps, pull, stop
from runner.core.codec import encode
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.model.facts import FactsRequest
from runner.core.model.launch_request import DryRun
from runner.core.model.spec import Node, Spec

__all__ = [
    "attach",
    "check",
    "clean",
    "config",
    "deploy",
    "exec_",
    "explain",
    "init",
    "logs",
    "plan",
    "ps",
    "pull",
    "stacks",
    "stop",
    "why",
]


def _storage_request(spec: Spec, node: Node) -> FactsRequest:
    return FactsRequest(node=node.name, workdir=spec.workdir, hosts_only=True)


@verb("deploy")
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
    from runner.control.code.snapshot import Snapshot
    from runner.core.planning.readiness import storage_problems
    from runner.ui.reports import tables

    composed = composed_of(cluster, set_, config_dir)
    spec = composed.spec
    if not spec.deploy.on:
        what = f"cluster {spec.cluster} takes no code: it is in {spec.project} on its hosts"
        hint = "cluster.deploy=auto without cluster.project pushes it"
        if not says_cluster(cluster, set_):
            hint = "which cluster? python -m runner deploy --cluster NAME"
        raise ConfigError([Problem("cluster.deploy", what, hint)])
    snapshot = Snapshot.take(spec, Path.cwd(), composed.run_dir)
    with contact_of(composed) as hosts:
        for note in snapshot.notes:
            hosts.console.say(f"note: {note}")
        facts = hosts.gather(lambda node: _storage_request(spec, node), storage_problems)
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


@verb(
    "exec",
    command="what to run, as one line for the shell; or after `--`, word by word",
    timeout="how long it may take: 90, 10m, 2h; 10m unless given",
)
def exec_(
    _context: Context,
    command: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    timeout: str = "10m",
    json_: bool = False,
) -> int:
    """Run a command on every host, equal answers folded.

    Such as: exec --cluster lab3 -- nvidia-smi -L
    """
    from runner.control.remote_exec import Execution
    from runner.core.planning.readiness import setup_problems
    from runner.ui.reports import tables

    words = REST[:] or ([command] if command else [])
    if REST and command:
        what = f"two commands: {command!r}, and the words after `--`"
        raise ConfigError([Problem("exec", what, "give one of them")])
    if not words:
        hint = "such as: python -m runner exec --cluster lab3 -- nvidia-smi -L"
        raise ConfigError([Problem("exec", "there is no command to run", hint)])
    argv = ["/bin/sh", "-c", words[0]] if len(words) == 1 else words
    limit_s = span("--timeout", timeout)
    if not limit_s:
        raise ConfigError([Problem("--timeout", "must be more than 0", "such as --timeout 60")])
    composed = composed_of(cluster, set_, config_dir)
    spec = composed.spec
    with contact_of(composed) as hosts:
        hosts.gather(
            lambda node: replace(_storage_request(spec, node), setup=spec.setup),
            setup_problems,
        )
        hosts.console.phase("running")
        execution = Execution(hosts.sessions, hosts.inbox, spec.lost_s, hosts.console.state)
        execution.run(argv, limit_s)
    answers = [execution.answers[node.name] for node in spec.nodes]
    print(json.dumps(tables.as_data(answers)) if json_ else tables.answers(answers))
    return tables.exit_code(answers, execution.signal)


@verb(
    "clean",
    older_than="what ended or was used so long ago: 7d, 12h, 30m; 7d unless given",
    dry_run="remove nothing, only say what would go",
)
def clean(
    _context: Context,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    older_than: str = "7d",
    dry_run: bool = False,
    json_: bool = False,
) -> int:
    """Remove old runs and releases from every host.

    With their logs and what the ranks wrote there; never what is in use.
    """
    from runner.control.rpc.broadcast import Asking
    from runner.core.planning.readiness import storage_problems
    from runner.ui.reports import tables

    bounds = {"older_than_s": span("--older-than", older_than, bare=False), "dry_run": dry_run}
    composed = composed_of(cluster, set_, config_dir)
    spec = composed.spec
    with contact_of(composed) as hosts:
        hosts.gather(lambda node: _storage_request(spec, node), storage_problems)
        hosts.console.phase("cleaning")
        asking = Asking(hosts.sessions, hosts.inbox, spec.lost_s, hosts.console.state)
        try:
            cleaned = asking.run("clean", bounds, answer="cleaned")
        except Interrupted as error:
            what = "interrupted; what was removed until then is gone, the rest is whole"
            raise Interrupted(error.exit_code, what) from None
    gone = {node.name: tables.Cleaned.of(cleaned[node.name]) for node in spec.nodes}
    print(json.dumps(encode(gone)) if json_ else tables.cleaned(gone, dry_run=dry_run))
    return 0


@verb("plan", offline="ask no host: show what can be known from here")
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
    from runner.workflows.launch import rehearse

    composed = composed_of(cluster, set_, config_dir)
    offline = offline or composed.dry_run is DryRun.OFFLINE
    dry_run = DryRun.OFFLINE if offline else DryRun.ON
    rehearse(replace(composed, dry_run=dry_run, notes=()), as_json=json_)
    return 0


@verb(
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
    with composer_of(config_dir) as composer:
        text = composer.yaml(words_of(cluster, set_), key, resolve=resolve)
    if json_:
        import yaml

        text = json.dumps(yaml.safe_load(text))
    print(text.rstrip("\n"))
    return 0


@verb("explain", key="such as cluster.python; everything below it is told")
def explain(
    _context: Context,
    key: str,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Say which file or word set a value, and what it overrides."""
    from runner.ui.reports import tables

    with composer_of(config_dir) as composer:
        origins = composer.origins(words_of(cluster, set_), key)
    print(json.dumps(encode(origins)) if json_ else tables.origins(origins))
    return 0


@verb(
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
    from runner.cli.scaffold import init as write
    from runner.workflows.launch import rehearse

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
        composed = composed_of("", outcome.words, ())
        rehearse(replace(composed, dry_run=DryRun.OFFLINE), as_json=False)
    return 0


VERBS: dict[str, Task[Any]] = {
    **{each.name: each for each in (deploy, exec_, plan, config, explain, clean, init)},
    **DIAGNOSING,
    **RUN_VERBS,
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
