"""The verb `exec`: one command on every host."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from runner.control.remote_exec import RemoteCommand
from runner.control.run.hosts import workdir_request
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Problem
from runner.core.planning.readiness import setup_problems
from runner.core.results import CommandResult
from runner.core.shell import this_program
from runner.core.wire.paths import NO_RANK
from runner.core.wire.states import LOST_CODE, STUCK_CODE
from runner.ui.output import show
from runner.ui.reports import tables
from runner.verbs.shared.selection import Selection, open_pool
from runner.verbs.shared.verb import json_option, parse_duration, verb

EXIT_NOT_STARTED = 127


@verb(
    "exec",
    subject="command",
    keys=("cluster.setup",),
    examples={
        "exec --cluster lab3 -- nvidia-smi -L": "a program and its words",
        "exec --cluster lab3 'df -h ~ | tail -1'": "a line of shell",
    },
)
@click.option(
    "--command",
    default="",
    metavar="nvidia-smi",
    help="the command as one line of shell; or give its words after `--`",
)
@click.option(
    "--timeout", default="10m", metavar="90", help="the time limit: 90, 10m, 2h; by default 10m"
)
@json_option
def exec_(
    selection: Selection,
    command: str,
    timeout: str,
    json_: bool,
    words: Sequence[str],
) -> int:
    """Run a command on every host, and show its output line by line as it comes.

    The exit code is the worst of the commands'.
    """
    if words and command:
        message = f"two commands: {command!r}, and the words after `--`"
        raise ConfigError([Problem("exec", message, "give one of them")])
    argv = list(words) or [command]
    if argv == [""]:
        hint = f"such as: {this_program()} exec --cluster NAME -- nvidia-smi -L"
        raise ConfigError([Problem("exec", "there is no command to run", hint)])
    if len(argv) == 1:
        argv = ["/bin/sh", "-c", *argv]
    timeout_s = parse_duration("--timeout", timeout)
    if not timeout_s:
        raise ConfigError([Problem("--timeout", "must be more than 0", "such as --timeout 60")])
    composed = selection.contact()
    spec = composed.spec
    with open_pool(composed) as pool:
        console = pool.console
        pool.collect_facts(
            lambda node: replace(workdir_request(spec, node), setup=spec.setup_of(node)),
            setup_problems,
        )
        console.phase("running")
        remote = RemoteCommand(pool.sessions, pool.inbox, spec.lost_s, console.node_status)

        def show_output(node: str, stream: str, data: bytes) -> None:
            console.rank_output(node, NO_RANK, stream, data)
            if console.reader_gone and not remote.received_signal:
                remote.on_signal(signal.SIGPIPE)

        if json_:
            remote.run(argv, timeout_s)
        else:
            remote.run(argv, timeout_s, show_output, lambda: console.is_full)
    results = [remote.results[node.name] for node in spec.nodes]
    if json_:
        print(json.dumps({result.node: _as_data(result) for result in results}))
    elif failures := tables.render_failures(results):
        show(failures, file=sys.stderr)
    return exit_code(results, remote.received_signal)


def _as_data(result: CommandResult) -> dict[str, Any]:
    return {
        "code": result.exit_code,
        "out": result.stdout.decode(errors="replace"),
        "err": result.stderr.decode(errors="replace"),
        "problem": result.problem,
        "dropped": result.truncated,
    }


def exit_code(results: Sequence[CommandResult], signum: int = 0) -> int:
    """Return the exit code: the highest of the commands', unless something worse happened.

    That is 5 if processes may be left, 128 + `signum` after a signal to us, and 4 for a lost host.
    """
    codes = [0]
    for result in results:
        if result.unverified and (signum or not result.lost):
            return STUCK_CODE
        code = EXIT_NOT_STARTED if result.exit_code is None else result.exit_code
        codes.append(SIGNAL_EXIT_BASE - code if code < 0 else code)
    if signum:
        return SIGNAL_EXIT_BASE + signum
    return LOST_CODE if any(result.lost for result in results) else max(codes)
