"""A host that lies: whatever it answers, the controller stays whole and writes where it may.

Real receiving code talks to a host whose answers are honest ones, mutated: fields of another type
or size, others missing, bytes of the stream overwritten. Nothing but a reported error may come
of it, nothing is written outside of the run's folder, and what is shown is printable text.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from runner.checks.base import CheckContext, evaluate_checks
from runner.control.attempt import monitor
from runner.control.attempt.attempt import Attempt
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.code.push import CodePush
from runner.control.code.source import CodeOnHosts
from runner.control.history.files import RecordFiles
from runner.control.history.series import read_loads
from runner.control.record.metrics_record import record_metrics
from runner.control.record.run_store import RunStore
from runner.control.remote_exec import RemoteCommand
from runner.control.rpc import wait
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import HostSession
from runner.control.rpc.wait import WaitLoop
from runner.control.run.attempts import Attempts
from runner.control.run.discovery import RunFinder
from runner.control.run.download import pull
from runner.control.run.hosts import enqueue_signal
from runner.core.errors import NotReady, RunnerError, fold_names
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.known_failures import explain
from runner.core.outcome.stacks import group_stacks
from runner.core.outcome.verdict import fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.replies import REPLIES
from runner.core.wire.codec import FrameError, encode
from runner.core.wire.facts import Driver, FactsRequest, Interpreter
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import RunInfo
from runner.ui.problems import render_findings, render_problems
from runner.ui.reports import report, run_table, tables
from runner.ui.reports.report import render_dry_run
from runner.ui.top import render_view
from runner.verbs import stacks, top
from runner.verbs.check import probe_network
from runner.verbs.launching.launch_session import launch_warnings
from runner.verbs.top import HostWatch
from tests.golden.builders import RUN_ID
from tests.unit.control.lying_host import (
    FACTS,
    HONEST,
    HONEST_ANSWERS,
    LIAR,
    NODES,
    PLAN,
    SPEC,
    Answer,
    Host,
    Pool,
    World,
    elastic_plan,
    recorded,
    shown,
)
from tests.unit.release_builders import InMemory, release

pytestmark = [pytest.mark.promise(12), pytest.mark.promise(13)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return a new one; it is as it was in the end."""
    monkeypatch.setattr(WaitLoop, "ping_interval_s", 0.003)
    for module in (wait, monitor):
        monkeypatch.setattr(module, "TICK_S", 0.002)
    monkeypatch.setattr(top, "RUNS_S", 0.0)
    world = World(tmp_path / "base")
    reject = HostSession.reject

    def note_fault(session: HostSession, error: Exception) -> None:
        if not isinstance(error, FrameError):
            world.faults.append(error)
        reject(session, error)

    monkeypatch.setattr(HostSession, "reject", note_fault)
    yield world
    world.verify()


class Briefly(AttemptMonitor):
    def _is_finished(self) -> bool:
        is_quiet = all(session.closed for session in self.sessions.values()) and self.inbox.empty()
        return is_quiet or super()._is_finished()


def facts_of_a_liar(pool: Pool) -> None:
    request = lambda node: FactsRequest(node=node.name)  # noqa: E731
    collector = FactsCollector(SPEC, pool.connector, pool.inbox, request, lambda *_: None)
    facts, problems = collector.collect()
    spec = replace(SPEC, nodes=tuple(node for node in NODES if node.name in facts))
    findings = evaluate_checks(CheckContext(spec, facts))
    shown(render_findings(findings, "lab", "train", 100))
    shown(render_problems(problems.values()))
    shown(render_dry_run(build_plan(spec, facts)))


def run_of_a_liar(pool: Pool) -> None:
    pool.connect()
    store = RunStore(pool.folder)
    assert store.reopen(LaunchRequest(SPEC, pool.folder, ""), PLAN)

    def log(node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        store.write_log(node, f"{source}.{stream}", offset, data)

    plan = elastic_plan(PLAN) if pool.chance.random() < 0.3 else PLAN
    console = MagicMock(is_full=False)
    attempt = Attempt(SPEC, plan, pool.sessions, console, store.append, log, shown)
    briefly = Briefly(attempt, pool.connector, pool.inbox)
    briefly.attach(read_only=pool.chance.random() < 0.3)
    if pool.chance.random() < 0.3:
        enqueue_signal(pool.inbox, signal.SIGINT)
    briefly.run()
    verdict = fold_events(briefly.plan, briefly.timed_events, 1.0)
    diagnosis = diagnose(plan, verdict, store.tail)
    store.write_result(plan, verdict, 1.7e9, diagnosis)
    record_metrics(pool.folder, plan.progress_pattern)
    store.unlock()
    RunStore(pool.folder).read_result()
    shown(
        report.final_report(plan, verdict, pool.folder, diagnosis, disconnect_s=600, run_flags="")[
            0
        ]
    )


def listing_of_a_liar(pool: Pool) -> None:
    finder = RunFinder(pool, "")
    runs = finder.runs()
    rows = run_table.rows(runs, all_=True)
    shown(run_table.render(rows, finder.unreachable, finder.hidden_runs, all_=True))
    for run in runs:
        record = finder.load_record(run)
        shown(report.run_header(record.plan))


def files_of_a_liar(pool: Pool) -> None:
    pool.connect()
    pulled = pull(pool, RUN_ID, pool.folder)
    shown(tables.render_pull(pulled, "runs/x"))
    shown(render_problems(tables.pull_problems(pulled)))
    for sources in read_loads(RecordFiles(pool.folder), 0.0).values():
        assert {label.partition(" ")[0] for label in sources} <= {HONEST, LIAR}


def logs_of_a_liar(pool: Pool) -> None:
    pool.connect()
    plan = elastic_plan(PLAN) if pool.chance.random() < 0.3 else PLAN
    alone = replace(plan, nodes=(plan.node(LIAR),))
    console = MagicMock(is_full=False)
    skip: Callable[..., None] = lambda *_: None  # noqa: E731
    attempt = Attempt(SPEC, alone, pool.sessions, console, skip, skip, shown)
    briefly = Briefly(attempt, pool.connector, pool.inbox)
    briefly.attach(ranks=(0, 1), once=True, read_only=True)
    briefly.run()


def answers_of_a_liar(pool: Pool) -> None:
    pool.connect()
    cleaned, problems = pool.broadcast().collect("clean", {}, "cleaned")
    results = {name: tables.CleanResult.from_reply(reply) for name, reply in cleaned.items()}
    infos = {run_id: RunInfo(run_id) for result in results.values() for run_id in result.runs}
    shown(tables.render_clean(results, infos, "7d", dry_run=True))
    _, more = pool.broadcast().collect("kill_leftovers", {}, "leftovers")
    shown(render_problems([*problems.values(), *more.values()]))


def command_of_a_liar(pool: Pool) -> None:
    pool.connect()
    command = RemoteCommand(pool.sessions, pool.inbox, 5.0)
    command.run(["cat"], 5.0)


def push_of_a_liar(pool: Pool) -> None:
    pool.connect()
    code = InMemory(release({"a.py": b"1", "b.py": b"2"}))
    sessions = pool.sessions
    CodePush(pool.spec, code, sessions, sessions, pool.inbox, lambda *_: None).run()


def network_of_a_liar(pool: Pool) -> None:
    pool.connect()
    network_probe = probe_network(SPEC, pool.broadcast, NODES, FACTS)
    findings = evaluate_checks(CheckContext(SPEC, FACTS, network_probe=network_probe))
    shown(render_findings(findings, "lab", "train", 100))


def relaunch_of_a_liar(pool: Pool) -> None:
    """Announce a relaunch, and plan one with the facts of its master, the liar."""
    pool.connect()
    pool.retarget(replace(pool.spec, nodes=NODES[::-1]))
    attempts = Attempts(
        LaunchRequest(SPEC, pool.folder, ""), CodeOnHosts(SPEC, Path()), pool, launch_warnings
    )
    attempts._wait(0.01, RUN_ID)
    attempts._former_nodes.update([HONEST, LIAR])
    shown(render_dry_run(attempts._prepare(1).plan))


def stacks_of_a_liar(pool: Pool) -> None:
    pool.connect()
    finder = RunFinder(Pool(None, pool.folder), "")
    finder.pool = pool
    stacks_by_node, problems = stacks._look(finder, PLAN)
    report = group_stacks(PLAN, stacks_by_node)
    shown(tables.render_stacks(report, [*problems.values()]))
    json.dumps(tables.stacks_as_data(RUN_ID, report, [*problems.values()]))


def view_of_a_liar(pool: Pool) -> None:
    watch = HostWatch(RunFinder(pool, ""))
    watch.poll()
    watch.poll()
    for width in (80, 10_000):
        console = Console(file=io.StringIO(), width=width)
        with console.capture() as captured:
            console.print(render_view(watch.view(), width, most=30))
        shown(captured.get())
    shown(json.dumps(watch.view().as_data()))


SCENES = [
    view_of_a_liar,
    facts_of_a_liar,
    run_of_a_liar,
    listing_of_a_liar,
    files_of_a_liar,
    logs_of_a_liar,
    answers_of_a_liar,
    command_of_a_liar,
    push_of_a_liar,
    network_of_a_liar,
    relaunch_of_a_liar,
    stacks_of_a_liar,
]


@pytest.mark.parametrize(
    "seeds", [20, pytest.param(2000, marks=[pytest.mark.all, pytest.mark.slow])]
)
def test_a_lie_costs_its_host_and_nothing_else(world: World, seeds: int) -> None:
    """No traceback, no file outside of the run's folder, no escape sequence; seeds are fixed.

    Each kind of reply becomes a lie: a new one has to be among those that the scenes are told.
    """
    Host.kinds.clear()
    for seed in itertools.count():
        for number, scene in enumerate(SCENES):
            shutil.rmtree(world.folder, ignore_errors=True)
            chance = random.Random(seed * len(SCENES) + number)  # noqa: S311
            try:
                scene(Pool(chance, world.folder))
            except RunnerError as error:  # that is reported to the user
                shown(render_problems(error.problems))
            except Exception as fault:
                raise AssertionError(f"{scene.__name__} with seed {seed}") from fault
        if seed >= seeds and (Host.kinds == REPLIES.keys() or seed >= seeds + 200):
            break
    assert Host.kinds == REPLIES.keys()


def test_a_host_speaks_for_itself_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record says nothing of another host's part, nor of another run: a stop would end that.

    A pattern of it is not used here either: it may search one line for ever.
    """

    def plan_read(**altered: object) -> Plan:
        def answer(request: dict[str, Any]) -> list[Answer]:
            plan: Any = encode(PLAN)
            if request["node"] == LIAR:
                plan["nodes"][1]["order"].update(altered)
            return recorded(plan)

        monkeypatch.setitem(HONEST_ANSWERS, "run", answer)
        finder = RunFinder(Pool(None, world.folder), "")
        (run,) = finder.runs()
        return finder.load_record(run).plan

    plan = plan_read(cwd="/")
    assert plan.node(HONEST) == PLAN.node(HONEST)
    assert plan.node(LIAR).order.cwd == "/"
    assert plan_read(run_id="0101-0000-other-beef") == PLAN
    assert plan_read(node=HONEST) == PLAN
    assert plan_read(progress_pattern="(a+)+$") == PLAN


def test_a_host_whose_connection_broke_is_not_shown_as_it_was(world: World) -> None:
    """It is asked all the same, and has a problem."""
    watch = HostWatch(RunFinder(Pool(None, world.folder), ""))
    watch.poll()
    assert (watch.problems, LIAR in watch.samples) == ({}, True)
    watch.finder.pool.sessions[LIAR].close()
    watch.poll()
    assert [*watch.problems] == [LIAR]


def test_no_host_says_which_machine_is_contacted(world: World) -> None:
    """A node of the run that the YAML lacks is named, with the key that adds it."""
    finder = RunFinder(Pool(None, world.folder), "")
    other = replace(PLAN.nodes[1], node="c", host="10.0.0.3")
    told = "c: it is a node of .*, and not of lab here\n +if it is: .cluster.nodes.c.host=10.0.0.3"
    with pytest.raises(NotReady, match=told):
        finder.retarget_to_run(replace(PLAN, nodes=(*PLAN.nodes, other)))


@pytest.mark.parametrize("digits", ["9" * 5000, "\N{SUPERSCRIPT TWO}"])
def test_digits_that_are_no_number_are_no_fault(digits: str) -> None:
    """Of an exit, a driver, a Python, or nodes that a host names; Python refuses so many."""
    python = Interpreter("/usr/bin/python3", f"3.{digits}", torch="2.13.0", torch_cuda=digits)
    liar = replace(FACTS[LIAR], python=python, driver=Driver("550.54.15", digits))
    facts = {**FACTS, LIAR: liar}
    shown(render_dry_run(build_plan(SPEC, facts)))
    shown(render_findings(evaluate_checks(CheckContext(SPEC, facts)), "lab", "train", 100))
    assert explain([], {"exit": digits}) is None
    assert digits in fold_names([f"gpu{digits}", "gpu1"])
