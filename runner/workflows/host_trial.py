"""Host trial: one connection to one host, its facts, and a search for an interpreter with torch."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace

from runner.control.remote_exec import RemoteCommand
from runner.core.dataclass import dataclass
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, Problem
from runner.core.model.facts import Facts, FactsRequest, Interpreter
from runner.core.model.spec import Node, Spec, Ssh, Task
from runner.ui.console.plain import Console
from runner.workflows.host_pool import HostPool, enqueue_signal, open_host_pool

TRIAL_TIMEOUT_S = 10.0
STEP_TIMEOUT_S = 6.0  # of the connection, or of a tool there: its own message says more

_SEARCH = """\
for base in ~/* ~/.[!.]* ~/.pyenv/versions/* ~/*/venv ~/*/.venv ~/*/envs/* ~/.[!.]*/envs/* \
/opt/* /opt/*/envs/*; do
    for torch in "$base"/lib/python3*/site-packages/torch/version.py; do
        if [ -e "$torch" ] && [ -x "$base/bin/python" ]; then echo "$base/bin/python"; exit; fi
    done
done
"""
"""Prints the first interpreter of an environment that has torch; none of them is started."""


@dataclass
class HostTrial:
    """What was found on one host."""

    problem: Problem | None = None  # why there are no facts
    facts: Facts | None = None
    with_torch: Interpreter | None = None  # which may be that of the facts


def try_host(node: Node, ssh: Ssh, python: str, *, search: bool = True) -> HostTrial:
    """Connect to a host and look for an interpreter that has torch, `python` first.

    It takes `TRIAL_TIMEOUT_S` at most. With `search` the next is the one that a login shell finds,
    then those of environments in the usual places. Raises Interrupted when a signal comes to this
    process.
    """
    ssh = replace(ssh, connect_timeout=STEP_TIMEOUT_S)
    no_task = Task("init", "command", "true")
    spec = Spec(run_id="init", cluster="", nodes=(node,), task=no_task, ssh=ssh)
    trial = HostTrial()
    with open_host_pool(spec, Console(reader_gone_note=b"")) as pool:
        # A signal that nobody else sends: whatever waits for the host is interrupted.
        too_late = threading.Timer(TRIAL_TIMEOUT_S, enqueue_signal, (pool.inbox, signal.SIGALRM))
        too_late.daemon = True
        too_late.start()
        try:
            _fill(trial, pool, python, search=search)
        except Interrupted as error:
            if error.exit_code != SIGNAL_EXIT_BASE + signal.SIGALRM:
                raise
            trial.problem = Problem(node.name, f"no answer within {TRIAL_TIMEOUT_S:g} s")
        finally:
            too_late.cancel()
    return trial


def _fill(trial: HostTrial, pool: HostPool, python: str, *, search: bool) -> None:
    name = pool.spec.master.name
    request = FactsRequest(name, python=python, thorough=True, tool_timeout_s=STEP_TIMEOUT_S)
    all_facts, problems = pool.collect_available_facts(lambda _: request)
    trial.problem, trial.facts = problems.get(name), all_facts.get(name)
    if trial.facts is None:
        return
    own = (trial.facts.python,)
    for candidate in (*own, trial.facts.login_python) if search else own:
        if candidate.torch:
            trial.with_torch = candidate
            return
    if not search:
        return
    command = RemoteCommand(pool.sessions, pool.inbox, pool.spec.lost_s, pool.console.node_status)
    command.run(["/bin/sh", "-c", _SEARCH], STEP_TIMEOUT_S)
    if command.received_signal:
        raise Interrupted(SIGNAL_EXIT_BASE + command.received_signal)
    if found := command.results[name].stdout.decode(errors="replace").strip():
        request = replace(request, python=found, thorough=False)
        all_facts, _ = pool.collect_available_facts(lambda _: request, reuse_sessions=True)
        if name in all_facts and all_facts[name].python.torch:
            trial.with_torch = all_facts[name].python
