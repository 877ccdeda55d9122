"""The verb `exec`: one command on every host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from runner.cli.command import Selection, open_pool, parse_duration, verb, workdir_request
from runner.core.errors import ConfigError, Problem


@verb(
    "exec",
    command="the command as one line of shell; or give its words after `--`",
    timeout="the time limit: 90, 10m, 2h; by default 10m",
)
def exec_(
    selection: Selection,
    command: str = "",
    timeout: str = "10m",
    json_: bool = False,
    *,
    words: Sequence[str] = (),
) -> int:
    """Run a command on every host, with equal answers folded.

    Example: exec --cluster lab3 -- nvidia-smi -L
    """
    from runner.control.remote_exec import RemoteCommand
    from runner.core.planning.readiness import setup_problems
    from runner.ui.reports import tables

    command_words = list(words) or ([command] if command else [])
    if words and command:
        message = f"two commands: {command!r}, and the words after `--`"
        raise ConfigError([Problem("exec", message, "give one of them")])
    if not command_words:
        hint = "such as: python -m runner exec --cluster lab3 -- nvidia-smi -L"
        raise ConfigError([Problem("exec", "there is no command to run", hint)])
    argv = ["/bin/sh", "-c", command_words[0]] if len(command_words) == 1 else command_words
    timeout_s = parse_duration("--timeout", timeout)
    if not timeout_s:
        raise ConfigError([Problem("--timeout", "must be more than 0", "such as --timeout 60")])
    composed = selection.compose()
    spec = composed.spec
    with open_pool(composed) as pool:
        setup = spec.setup
        pool.collect_facts(lambda n: replace(workdir_request(spec, n), setup=setup), setup_problems)
        pool.console.phase("running")
        show = pool.console.node_status
        remote_command = RemoteCommand(pool.sessions, pool.inbox, spec.lost_s, show)
        remote_command.run(argv, timeout_s)
    answers = [remote_command.results[node.name] for node in spec.nodes]
    print(json.dumps(tables.answers_as_data(answers)) if json_ else tables.render_answers(answers))
    return tables.answers_exit_code(answers, remote_command.received_signal)
