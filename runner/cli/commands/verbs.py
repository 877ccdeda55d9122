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
    compose,
    composer_for_dirs,
    names_cluster,
    open_pool,
    overrides,
    parse_duration,
    verb,
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


def _workdir_request(spec: Spec, node: Node) -> FactsRequest:
    return FactsRequest(node=node.name, workdir=spec.workdir, skip_launch_facts=True)


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
    from runner.core.planning.readiness import workdir_problems
    from runner.ui.reports import tables

    composed = compose(cluster, set_, config_dir)
    spec = composed.spec
    if not spec.deploy.enabled:
        message = f"cluster {spec.cluster} takes no code: it is in {spec.project} on its hosts"
        hint = "cluster.deploy=auto without cluster.project pushes it"
        if not names_cluster(cluster, set_):
            hint = "which cluster? python -m runner deploy --cluster NAME"
        raise ConfigError([Problem("cluster.deploy", message, hint)])
    snapshot = Snapshot.take(spec, Path.cwd(), composed.run_dir)
    with open_pool(composed) as pool:
        for note in snapshot.notes:
            pool.console.message(f"note: {note}")
        facts = pool.collect_facts(lambda node: _workdir_request(spec, node), workdir_problems)
        started_at = time.monotonic()
        received = pool.push(snapshot, facts, verify=True)
        seconds = time.monotonic() - started_at
    deployed = tables.PushResult(
        release=snapshot.code.release,
        commit=snapshot.code.commit,
        files=len(snapshot.manifest.files),
        size=snapshot.manifest.size,
        seconds=round(seconds, 3),
        sent={
            node.name: received[node.name].sent if received[node.name].is_new else None
            for node in spec.nodes
        },
    )
    print(json.dumps(encode(deployed)) if json_ else tables.render_push(deployed))
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
    from runner.control.remote_exec import RemoteCommand
    from runner.core.planning.readiness import setup_problems
    from runner.ui.reports import tables

    command_words = PASSTHROUGH_ARGS[:] or ([command] if command else [])
    if PASSTHROUGH_ARGS and command:
        message = f"two commands: {command!r}, and the words after `--`"
        raise ConfigError([Problem("exec", message, "give one of them")])
    if not command_words:
        hint = "such as: python -m runner exec --cluster lab3 -- nvidia-smi -L"
        raise ConfigError([Problem("exec", "there is no command to run", hint)])
    argv = ["/bin/sh", "-c", command_words[0]] if len(command_words) == 1 else command_words
    timeout_s = parse_duration("--timeout", timeout)
    if not timeout_s:
        raise ConfigError([Problem("--timeout", "must be more than 0", "such as --timeout 60")])
    composed = compose(cluster, set_, config_dir)
    spec = composed.spec
    with open_pool(composed) as pool:
        pool.collect_facts(
            lambda node: replace(_workdir_request(spec, node), setup=spec.setup),
            setup_problems,
        )
        pool.console.phase("running")
        remote_command = RemoteCommand(
            pool.sessions, pool.inbox, spec.lost_s, pool.console.node_status
        )
        remote_command.run(argv, timeout_s)
    answers = [remote_command.results[node.name] for node in spec.nodes]
    print(json.dumps(tables.as_data(answers)) if json_ else tables.render_answers(answers))
    return tables.exit_code(answers, remote_command.received_signal)


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
    from runner.control.rpc.broadcast import Broadcast
    from runner.core.planning.readiness import workdir_problems
    from runner.ui.reports import tables

    request = {
        "older_than_s": parse_duration("--older-than", older_than, allow_bare=False),
        "dry_run": dry_run,
    }
    composed = compose(cluster, set_, config_dir)
    spec = composed.spec
    with open_pool(composed) as pool:
        pool.collect_facts(lambda node: _workdir_request(spec, node), workdir_problems)
        pool.console.phase("cleaning")
        broadcast = Broadcast(pool.sessions, pool.inbox, spec.lost_s, pool.console.node_status)
        try:
            cleaned = broadcast.all("clean", request, reply_kind="cleaned")
        except Interrupted as error:
            message = "interrupted; what was removed until then is gone, the rest is whole"
            raise Interrupted(error.exit_code, message) from None
    results = {node.name: tables.CleanResult.from_reply(cleaned[node.name]) for node in spec.nodes}
    print(json.dumps(encode(results)) if json_ else tables.render_clean(results, dry_run=dry_run))
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
    from runner.workflows.launch import dry_run

    composed = compose(cluster, set_, config_dir)
    offline = offline or composed.dry_run is DryRun.OFFLINE
    mode = DryRun.OFFLINE if offline else DryRun.ON
    dry_run(replace(composed, dry_run=mode, notes=()), as_json=json_)
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
    with composer_for_dirs(config_dir) as composer:
        text = composer.yaml(overrides(cluster, set_), key, resolve=resolve)
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

    with composer_for_dirs(config_dir) as composer:
        origins = composer.origins(overrides(cluster, set_), key)
    print(json.dumps(encode(origins)) if json_ else tables.render_origins(origins))
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
    from runner.cli.scaffold import scaffold
    from runner.workflows.launch import dry_run

    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json_
    with contextlib.redirect_stdout(sys.stderr if json_ else sys.stdout):
        result = scaffold(
            cluster=cluster,
            task=task_,
            hosts=hosts or (),
            user=user,
            key=key,
            python=python,
            script=script,
            interactive=interactive,
        )
    if json_:
        data = {"written": result.written, "kept": result.existing}
        print(json.dumps({name: [str(path) for path in paths] for name, paths in data.items()}))
    if result.try_now:
        composed = compose("", result.overrides, ())
        dry_run(replace(composed, dry_run=DryRun.OFFLINE), as_json=False)
    return 0


VERBS: dict[str, Task[Any]] = {
    **{each.name: each for each in (deploy, exec_, plan, config, explain, clean, init)},
    **DIAGNOSING,
    **RUN_VERBS,
}
"""Every verb by the name it is called by."""

PASSTHROUGH_ARGS: list[str] = []
"""The words after `--`."""


def split_passthrough(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after `--`."""
    separator = list(words).index("--") if "--" in words else len(words)
    return list(words[:separator]), list(words[separator + 1 :])


def _take_passthrough_from_fab() -> None:
    """Have `fab exec -- WORDS` mean our `exec`: Fabric would run WORDS by itself on `-H` hosts."""
    main = sys.modules.get("fabric.main")
    core = getattr(getattr(main, "program", None), "core", None)
    before, rest = split_passthrough(sys.argv[1:])
    if core is not None and rest and "exec" in before:
        PASSTHROUGH_ARGS[:] = rest
        core.remainder = ""


_take_passthrough_from_fab()
