"""A host that lies: whatever it answers, the controller stays whole and writes where it may.

Real receiving code talks to a host whose answers are honest ones, mutated: fields of another type
or size, others missing, bytes of the stream overwritten. Nothing but a reported error may come
of it, nothing is written outside of the run's folder, and what is shown is printable text.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import queue
import random
import re
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from runner.checks.base import CheckContext, evaluate_checks
from runner.control.attempt import monitor
from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.observer import RunObserver
from runner.control.code.code_store import PushSource
from runner.control.code.push import CodePush
from runner.control.code.source import CodeOnHosts
from runner.control.history.files import Problems
from runner.control.history.series import read_loads
from runner.control.network_probe import probe_network
from runner.control.record import log_dump
from runner.control.record.download import pull
from runner.control.record.log_dump import LogDump
from runner.control.record.run_store import RunStore
from runner.control.remote_exec import RemoteCommand
from runner.control.rpc import wait
from runner.control.rpc.facts import FactsCollector
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.control.run.attempts import Attempts
from runner.control.run.discovery import RunFinder
from runner.control.run.hosts import HostPool, enqueue_signal
from runner.core.codec import decode, encode
from runner.core.errors import NotReady, Problem, RunnerError
from runner.core.launch_request import LaunchRequest
from runner.core.model.facts import FactsRequest, Gpu, GpuProcess, SetupResult
from runner.core.model.metrics import RankProgress
from runner.core.model.network_probe import HostProbe, Outcome, ProbeResult, Target
from runner.core.model.plan import Plan
from runner.core.model.replies import REPLY_TYPES
from runner.core.model.run_info import HostRunStatus, PastAttempt, RunInfo
from runner.core.model.samples import GpuSample, GpuUser, Sample, parse_sample
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.stacks import group_stacks
from runner.core.outcome.verdict import fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.protocol import events
from runner.core.protocol.events import Event
from runner.core.protocol.frames import MAGIC, Frame, FrameDecoder, FrameError
from runner.core.protocol.paths import EVENTS_FILE
from runner.core.protocol.states import State
from runner.core.spec import Node, Progress
from runner.transport.base import Ending
from runner.ui.output import show
from runner.ui.problems import render_findings, render_problems
from runner.ui.reports import report, run_table, tables
from runner.ui.reports.dry_run import render_dry_run
from runner.ui.top import render_view
from runner.verbs import stacks, top
from runner.verbs.launching.launch_session import launch_warnings
from runner.verbs.top import HostWatch
from tests.golden import builders
from tests.golden.builders import RUN_ID
from tests.unit.core.outcome.test_stacks import DUMP
from tests.unit.release_builders import release

pytestmark = [pytest.mark.promise(12), pytest.mark.promise(13)]

HONEST, LIAR = "a", "b"
CLOCKS = {"mono": 5.0, "wall": 1.7e9}
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 2**200, 0.5, -1e308, 1e308),
    *(float("nan"), float("inf"), "", "x", "0", "../../../../escaped", "/tmp/escaped", "a/b"),
    *("x/../../../../.bashrc.d/x_7", "\0", ESCAPE, "\ud800", "\n" * 50, "y" * 5000, [], {}),
    *[ESCAPE] * 8,
    *([None], {"": None}, {"node": "ghost"}, [[["deep"]]], "ghost", "events", "rank_0", b"".hex()),
]
NASTY_WORDS = [b"9" * 5000, b"-1", b"1.2.3", b".", b"", b"x", ESCAPE.encode(), b"\xff", b"\n"]
LYING_FRAMES = 20_000
MAX_PINGS = 2
"""Pings that a host answers before it leaves: the wait for the answer that it did not give ends."""


@dataclass
class Answer:
    """A reply of an honest host; the id of the request is added."""

    kind: str
    data: dict[str, Any]
    payload: bytes = b""


def mutated(value: Any, chance: random.Random) -> Any:
    """Return JSON data in which one place is not as it was, perhaps in JSON within it."""
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(mutated(json.loads(value), chance))
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice([*value])
        changed = dict(value)
        deed = chance.random()
        if deed < 0.1:
            del changed[key]
        elif deed < 0.2:
            changed[chance.choice(["id", "kind", "rank", "node", "offset", "x"])] = changed[key]
        else:
            changed[key] = mutated(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        return [*value[:index], mutated(value[index], chance), *value[index + 1 :]]
    return copy.deepcopy(chance.choice(NASTY))


class Host:
    """The other end of a channel: it answers requests, and lies if it has a `chance` to."""

    spoken = 0  # frames of liars, in all
    kinds: ClassVar[set[str]] = set()  # of the answers that became lies

    def __init__(self, chance: random.Random | None, *, leaves: bool) -> None:
        self._chance, self._leaves = chance, leaves
        self._coming: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._decoder = FrameDecoder()
        self._pings = 0
        self.ended: Ending | None = None
        self._coming.put(MAGIC + self._packed(Answer("hello", CLOCKS), None))

    def read(self) -> bytes:
        try:
            return self._coming.get(timeout=10)
        except queue.Empty:
            return b""

    def write(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._pings += frame.kind == "ping"
            if self._pings > MAX_PINGS and self._leaves:
                self.close()
            answer_to = HONEST_ANSWERS.get(frame.kind)
            answers = answer_to(frame.data) if answer_to else []
            for answer in answers:
                self._coming.put(self._packed(answer, frame.data.get("id")))
            if not answers:
                self.close()

    def close(self) -> None:
        self._coming.put(b"")

    def _packed(self, answer: Answer, request_id: int | None) -> bytes:
        data: Any = {"id": request_id, **answer.data}
        payload, chance = answer.payload, self._chance
        if chance is None or (answer.kind == "hello" and chance.random() < 0.9):
            return Frame(answer.kind, data, payload).pack()
        Host.spoken += 1
        Host.kinds.add(answer.kind)
        kind = answer.kind
        if chance.random() < 0.3:
            data = mutated(data, chance)
        if chance.random() < 0.2:
            payload = self._other_payload(payload, chance)
        if chance.random() < 0.03:
            kind = chance.choice(["closed", "admitted", "signal", "refused", "data", "pong", ""])
        try:
            packed = bytearray(Frame(kind, data if isinstance(data, dict) else {}, payload).pack())
        except ValueError:  # it cannot even be written
            packed = bytearray(Frame("hello", {}).pack())
        if chance.random() < 0.03:
            packed[chance.randrange(len(packed))] = chance.randrange(256)
        return bytes(packed)

    @staticmethod
    def _other_payload(payload: bytes, chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return chance.randbytes(chance.randrange(40))
        with contextlib.suppress(zlib.error, ValueError):
            data = mutated(json.loads(zlib.decompress(payload)), chance)
            return zlib.compress(json.dumps(data).encode())
        lines = payload.split(b"\n")
        index = chance.randrange(len(lines))
        try:
            lines[index] = json.dumps(mutated(json.loads(lines[index]), chance)).encode()
        except ValueError:
            words = re.split(rb"(\W+)", lines[index])
            words[chance.randrange(len(words))] = chance.choice(NASTY_WORDS)
            lines[index] = b"".join(words)
        return b"\n".join(lines)


class OneVisit(Connector):
    """Opens one session to each host, and no second one."""

    def __init__(self, chance: random.Random | None) -> None:
        self.spec = SPEC
        leaves = chance is not None
        self._left = {HONEST: Host(None, leaves=leaves), LIAR: Host(chance, leaves=leaves)}

    def open(self, node: Node, inbox: Inbox) -> HostSession:
        if node.name not in self._left:
            raise NotReady([Problem(node.name, "it is gone")])
        return HostSession(node, self._left.pop(node.name), inbox)

    def close(self) -> None:
        """End nothing: each session has been closed."""


NODES = (Node(HONEST, "10.0.0.1", nproc_per_node=1), Node(LIAR, "10.0.0.2", nproc_per_node=1))
SPEC = builders.spec(*NODES, lost_s=0.05)
FACTS = {
    node.name: replace(
        builders.facts(node.name, f"eth0 {node.host}/24", gpu_count=2),
        setup=SetupResult(0, "hello\n"),
        gpus=(Gpu(0, "A100", "GPU-1", (GpuProcess(7, 1 << 30, "eve", "python"),)), Gpu(1)),
        preset_env={"NCCL_SOCKET_IFNAME": "eth1"},
        limits={"nofile": 1024},
    )
    for node in NODES
}
PLAN = build_plan(SPEC, FACTS)
INFO = RunInfo(
    RUN_ID,
    cluster="lab",
    task="train",
    launched_by="ada@desk",
    launched_at=1.7e9,
    past_attempts=(PastAttempt(0, (HONEST, LIAR), "rank 0 exited with 1"),),
    relaunches_left=1,
)
RANK = {"path": "/bin", "shm": "64 MiB"}
BODIES = [
    events.ProgramStarted(7),
    events.HubJoined(),
    events.RankStarted(1, 70, world_size=2, nodes=2, master="10.0.0.1:29512"),
    events.Stalled(30.0),
    events.ProgressResumed(),
    events.PortTaken(29512, (7,)),
    events.HubUnreachable("10.0.0.1:29513"),
    events.PeerLost(HONEST, "silent"),
    events.PeerDeparted(HONEST, "silent", 1),
    events.RelaunchPending(),
    events.Relaunching(1, (HONEST, LIAR), "lost"),
    events.NotRelaunched("too few"),
    events.RankExited(
        rank=1,
        code=1,
        max_rss=1 << 30,
        error="ValueError: x",
        traceback="Traceback",
        exception="ValueError: x",
        facts=RANK,
    ),
    events.ProgramExited(1),
    events.Stopping("a rank failed"),
    events.Ended(State.FAILED, "a rank failed", 1, (), verified=True),
]


def journal(node: str) -> bytes:
    """Return what a host has in `events.jsonl`."""
    lines = [
        Event(RUN_ID, node, 0, number, 1.7e9 + number, 5.0 + number, body).to_line()
        for number, body in enumerate(BODIES)
        if node == LIAR or not isinstance(body, (events.RankStarted, events.RankExited))
    ]
    return "".join(lines).encode()


def streamed(request: dict[str, Any]) -> list[Answer]:
    contents = {EVENTS_FILE: journal(LIAR), "rank_1.out": LOG, "rank_1.metrics": LOG}
    if not request["others"]:
        del contents["rank_1.metrics"]
    if 1 not in (request["ranks"] or [1]):
        contents = {EVENTS_FILE: journal(HONEST)}
    parts = [
        Answer(
            "events" if file == EVENTS_FILE else "data",
            {"file": file, "offset": at, "error": ""},
            data[at : at + 500],
        )
        for file, data in contents.items()
        for at in range(0, len(data), 500)
    ]
    is_refused = request["ranks"] == [0, 1]  # of logs that nobody knows the ranks of
    return [*parts, Answer("refused", {"reason": "gone"}) if is_refused else Answer("streamed", {})]


def runs(request: dict[str, Any]) -> list[Answer]:
    status = HostRunStatus(
        *(INFO, "ada", State.RUNNING, True, 1.7e9),
        node=request["node"],
        progress=RankProgress(1, 20, 240, 812.5, "samples", 60.0),
    )
    listing = {
        "runs": [encode(status)],
        "unreadable": 1,
        "now": 1.7e9,
    }
    return [Answer("runs", listing)]


def record(_: dict[str, Any]) -> list[Answer]:
    texts = {"plan": json.dumps(encode(PLAN)), "info": json.dumps(encode(INFO)), "config": "a: b\n"}
    return [Answer("run", {}, zlib.compress(json.dumps(texts).encode()))]


def inventory(_: dict[str, Any]) -> list[Answer]:
    rows = [["log", "attempt_0/rank_0.out", 5, 7, 0o600, None]]
    rows += [["record", "events.jsonl", 5, 7, 0o600, None], ["output", "d/l", 0, 7, 0o777, "x"]]
    rows += [["samples", "attempt_0/samples.jsonl", len(sampled(LIAR)), 7, 0o600, None]]
    rows += [["output", f"d/{name}", 5, 7, 0o600, None] for name in ("model.pt", "gone")]
    end = {"omitted_count": 0, "skip_count": 1, "skipped": [["d/socket", "it is no file"]]}
    page = zlib.compress(json.dumps(rows).encode())
    return [Answer("inventory_page", {}, page), Answer("inventory_end", end)]


def fetched(request: dict[str, Any]) -> list[Answer]:
    answers = []
    for _, path, offset, size, _ in request["files"]:
        data = b"12345"[offset:]
        if path.endswith("samples.jsonl"):
            data = sampled(LIAR)  # both hosts send it, though one is not it
        file = {"file": path, "offset": offset, "eof": True, "size": size, "mtime_ns": 7}
        if path.endswith("gone"):
            file = {"file": path, "offset": 0, "eof": True, "error": "no such file"}
            data = b""
        answers.append(Answer("data", file, data))
    return [*answers, Answer("streamed", {})]


def sampled(node: str) -> bytes:
    users = (GpuUser(7, "eve", "python", 1 << 30, RUN_ID),)
    gpu = GpuSample(0, "A100", 98, 1 << 30, 1 << 36, 300.0, 70.0, ("power",), users)
    load = (8, 50.0, 1 << 30, 1 << 36)
    return Sample(node, 0, 1.7e9, *load, (gpu,)).to_line().encode()


def probed(request: dict[str, Any]) -> list[Answer]:
    others = [decode(Target, each) for each in request["targets"]]
    reached = [
        ProbeResult(target, Outcome.REACHED, 0.0002)
        for target in others
        if target.node != request["node"]
    ]
    return [Answer("probed", {"result": encode(HostProbe(tuple(reached)))})]


LOG = b'{"step": 1, "rate": 2.5}\nTraceback (most recent call last):\n'
EXITED = {"code": 0, "survivors": [], "timed_out": False}
CLEANED = {"runs": [RUN_ID], "releases": [], "in_use": [], "bytes": 7}
HONEST_ANSWERS: dict[str, Callable[[dict[str, Any]], list[Answer]]] = {
    "adopt": lambda _: [Answer("absent", {})],
    "chunk": lambda _: [Answer("taken", {"bytes": 7}), Answer("in_progress", {})],
    "clean": lambda _: [Answer("cleaned", CLEANED)],
    "command": lambda _: [Answer("command_sent", {})],
    "dump_stacks": lambda _: [Answer("stacks_dumped", {}, DUMP.encode())],
    "credit": lambda _: [Answer("in_progress", {})],
    "exec": lambda _: [
        Answer("data", {"file": "out", "offset": 0}, b"hi\n"),
        Answer("exited", EXITED),
    ],
    "facts": lambda asked: [
        Answer("facts", {**CLOCKS, "facts": encode(FACTS[asked["request"]["node"]])})
    ],
    "fetch": fetched,
    "finish": lambda _: [Answer("stored", {"new": True})],
    "follow": lambda _: [Answer("following", {})],
    "inventory": inventory,
    "kill_leftovers": lambda _: [Answer("leftovers", {"killed": 1, "survivors": [7]})],
    "listen": lambda _: [Answer("listening", {"port": 40001, "error": ""})],
    "manifest": lambda _: [Answer("missing", {"missing": [0, 1]})],
    "mark_relaunch_pending": lambda _: [Answer("relaunch_pending", {"stop_requested": False})],
    "offer": lambda _: [Answer("store", {"store_id": "disk"})],
    "ping": lambda _: [Answer("pong", CLOCKS)],
    "probe": probed,
    "run": record,
    "runs": runs,
    "sample": lambda asked: [
        Answer("sampled", {"sample": encode(parse_sample(sampled(asked["node"])))})
    ],
    "stream": streamed,
}


class World:
    """A run folder, with another run and a home beside it that nothing may touch."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "home" / "project" / "runs" / RUN_ID
        other = self.folder.parent / "0101-0000-other-beef"
        other.mkdir(parents=True)
        (other / "events.jsonl").write_text("theirs\n")
        self._base = base
        self._before = self._outside()
        self.faults: list[Exception] = []  # what was not refused as malformed, but raised later

    def _outside(self) -> dict[str, bytes]:
        paths = (path for path in self._base.rglob("*") if self.folder not in (path, *path.parents))
        return {str(path): b"" if path.is_dir() else path.read_bytes() for path in paths}

    def verify(self) -> None:
        """Nothing outside of the run's folder has changed, and every lie was refused by name."""
        assert self.faults == []
        assert self._outside() == self._before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return a new one; it is as it was in the end."""
    monkeypatch.setattr(WaitLoop, "ping_interval_s", 0.003)
    for module in (wait, monitor, log_dump):
        monkeypatch.setattr(module, "TICK_S", 0.002)
    monkeypatch.setattr(top, "RUNS_S", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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


def shown(text: str) -> None:
    """What is shown of a host's words is printable."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        show(text)
    text = output.getvalue()
    assert all(char.isprintable() or char == "\n" for char in text), repr(text)


class Pool(HostPool):
    """A pool of both hosts, none of which is connected to yet, and what a scene needs beside it."""

    def __init__(self, chance: random.Random | None, folder: Path) -> None:
        console = MagicMock()
        console.message = shown
        super().__init__(replace(SPEC, lost_s=5.0), console, queue.SimpleQueue())
        self.connector = OneVisit(chance)
        self.chance = chance or random.Random()  # noqa: S311
        self.folder = folder

    def connect(self) -> None:
        self.sessions = {each.name: self.connector.open(each, self.inbox) for each in NODES}


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

    observer = RunObserver(store.append, log, shown, MagicMock(is_full=False))
    plan = elastic(PLAN) if pool.chance.random() < 0.3 else PLAN
    briefly = Briefly(SPEC, plan, pool.connector, pool.sessions, pool.inbox, observer)
    briefly.attach(read_only=pool.chance.random() < 0.3)
    if pool.chance.random() < 0.3:
        enqueue_signal(pool.inbox, signal.SIGINT)
    briefly.run()
    verdict = fold_events(briefly.plan, briefly.timed_events, 1.0)
    diagnosis = diagnose(plan, verdict, store.tail)
    store.write_result(plan, verdict, 1.7e9, diagnosis)
    store.record_metrics(plan)
    store.unlock()
    RunStore(pool.folder).read_result()
    shown(
        report.final_report(plan, verdict, pool.folder, diagnosis, disconnect_s=600, run_flags="")
    )


def elastic(plan: Plan) -> Plan:
    """Return a plan whose ranks torch assigns."""
    nodes = tuple(
        replace(node, ranks=(), order=replace(node.order, ranks=(), restarts_ranks=True))
        for node in plan.nodes
    )
    return replace(plan, nodes=nodes, min_nodes=1, max_nodes=2)


def listing_of_a_liar(pool: Pool) -> None:
    finder = RunFinder(pool, "")
    runs = finder.runs()
    rows = run_table.rows(runs, finder.clock_offsets, all_=True)
    shown(run_table.render(rows, finder.unreachable, finder.unreadable_runs, all_=True))
    for run in runs:
        record = finder.load_record(run)
        shown(report.run_header(record.plan))


def files_of_a_liar(pool: Pool) -> None:
    pool.connect()
    pulled = pull(pool.sessions, pool.inbox, RUN_ID, pool.folder, lost_s=5, show=lambda *_: None)
    shown(tables.render_pull(pulled, "runs/x"))
    shown(render_problems(tables.pull_problems(pulled)))
    for load in read_loads(pool.folder, 100, 0.0, Problems()):
        assert load.node in (HONEST, LIAR)


def logs_of_a_liar(pool: Pool) -> None:
    pool.connect()
    plan = elastic(PLAN) if pool.chance.random() < 0.3 else PLAN
    dump = LogDump(pool.sessions, pool.inbox, 5.0, lambda *_: None, None, lambda: False)
    dump.run(plan.nodes, (0, 1))
    shown(render_problems(dump.problems.values()))


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
    made = release({"a.py": b"1", "b.py": b"2"})
    read: Callable[[Any], Any] = lambda file: iter([made.contents[file.digest]])  # noqa: E731
    code = SimpleNamespace(manifest=made.manifest, encoded=made.manifest.encode(), read=read)
    push = CodePush(pool.spec, cast("PushSource", code), pool.sessions, pool.inbox, lambda *_: None)
    push.run()


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
        LaunchRequest(SPEC, pool.folder, ""), CodeOnHosts(SPEC), pool, launch_warnings
    )
    attempts._wait(0.01, RUN_ID)
    shown(render_dry_run(attempts._prepare(1, [HONEST, LIAR]).orders.plan))


def stacks_of_a_liar(pool: Pool) -> None:
    pool.connect()
    finder = RunFinder(Pool(None, pool.folder), "")
    finder.pool = pool
    stacks_by_node, problems = stacks._look(finder, PLAN)
    report = group_stacks(PLAN, stacks_by_node)
    shown(tables.render_stacks(report, [*problems.values()]))
    json.dumps(tables.stacks_as_data(RUN_ID, report, [*problems.values()]))


def view_of_a_liar(pool: Pool) -> None:
    request = LaunchRequest(SPEC, pool.folder, "")
    watch = HostWatch(request, RunFinder(pool, ""), is_run=pool.chance.choice([True, False]))
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


def tell_lies(seed: int, world: World) -> None:
    """Play every scene; what one raises is an error that is reported to the user."""
    for number, scene in enumerate(SCENES):
        shutil.rmtree(world.folder, ignore_errors=True)
        chance = random.Random(seed * len(SCENES) + number)  # noqa: S311
        try:
            scene(Pool(chance, world.folder))
        except RunnerError as error:
            shown(render_problems(error.problems))
        except Exception as fault:
            raise AssertionError(f"{scene.__name__} with seed {seed}") from fault


def test_a_lie_costs_its_host_and_nothing_else(world: World) -> None:
    """No traceback, no file outside of the run's folder, no escape sequence; seeds are fixed.

    Each kind of reply becomes a lie: a new one has to be among those that the scenes are told.
    """
    Host.kinds.clear()
    every_kind = REPLY_TYPES.keys()
    for seed in range(200):
        tell_lies(seed, world)
        if seed >= 20 and Host.kinds == every_kind:
            break
    assert Host.kinds == every_kind


@pytest.mark.all
@pytest.mark.slow
def test_twenty_thousand_lies(world: World) -> None:
    """As above, with so many frames of the liar."""
    Host.spoken = 0
    seed = 1000
    while Host.spoken < LYING_FRAMES:
        seed += 1
        tell_lies(seed, world)


def altered(order: dict[str, Any]) -> Callable[[dict[str, Any]], list[Answer]]:
    """Return how hosts send their record, where the liar has altered its order."""

    def answer(request: dict[str, Any]) -> list[Answer]:
        plan: Any = encode(PLAN)
        if request["node"] == LIAR:
            plan["nodes"][1]["order"].update(order)
        texts = {"plan": json.dumps(plan), "info": json.dumps(encode(INFO)), "config": "a: b\n"}
        return [Answer("run", {}, zlib.compress(json.dumps(texts).encode()))]

    return answer


def test_what_a_host_says_of_another_is_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes by the record that it has of itself."""
    monkeypatch.setitem(HONEST_ANSWERS, "run", altered(order={"cwd": "/"}))
    finder = RunFinder(Pool(None, world.folder), "")
    (run,) = finder.runs()
    plan = finder.load_record(run).plan
    assert plan.node(HONEST) == PLAN.node(HONEST)
    assert plan.node(LIAR).order.cwd == "/"


def test_no_host_says_which_machine_is_contacted(world: World) -> None:
    """A node of the run that the YAML lacks is named, with the key that adds it."""
    finder = RunFinder(Pool(None, world.folder), "")
    other = replace(PLAN.nodes[1], node="c", host="10.0.0.3")
    told = (
        "c: it is a node of .*, and not of lab here\n    if it is: .cluster.nodes.c.host=10.0.0.3"
    )
    with pytest.raises(NotReady, match=told):
        finder.retarget_to_run(replace(PLAN, nodes=(*PLAN.nodes, other)))


def test_pattern_of_a_host_is_not_used_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may search one line for ever; in its place is that of one's own YAML."""
    monkeypatch.setitem(HONEST_ANSWERS, "run", altered(order={"progress_pattern": "(a+)+$"}))
    pool = Pool(None, world.folder)
    pool.spec = replace(pool.spec, progress=Progress(r"it (\d+)"))
    finder = RunFinder(pool, "")
    (run,) = finder.runs()
    orders = [part.order for part in finder.load_record(run).plan.nodes]
    assert {order.progress_pattern for order in orders} == {r"it (\d+)"}


def test_order_of_another_run_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of this run would end the other one; the record of an honest host is used."""
    finder = RunFinder(Pool(None, world.folder), "")
    (run,) = finder.runs()

    for order in ({"run_id": "0101-0000-other-beef"}, {"node": HONEST}):
        monkeypatch.setitem(HONEST_ANSWERS, "run", altered(order=order))
        assert finder.load_record(run).plan == PLAN


def test_a_host_that_keeps_its_runs_to_itself_holds_up_no_launch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers pings and all else: its runs are but a note. What it says later is dropped."""
    request_ids: list[int] = []

    def without_answer(request: dict[str, Any]) -> list[Answer]:
        if request["node"] == HONEST:
            return runs(request)
        request_ids.append(request["id"])
        return [Answer("in_progress", {})]

    monkeypatch.setattr(wait, "ANSWER_TIMEOUT_S", 20.0)
    monkeypatch.setitem(HONEST_ANSWERS, "runs", without_answer)
    pool = Pool(None, world.folder)
    said: list[str] = []
    pool.console = MagicMock()
    pool.console.message.side_effect = said.append
    visit = OneVisit(None)
    liar = visit._left[LIAR]
    pool.connector = visit
    pool.connect()
    pool.spec = replace(pool.spec, run_id="mine")
    request = LaunchRequest(pool.spec, pool.folder, "")
    Attempts(request, CodeOnHosts(SPEC), pool, launch_warnings)._say_other_runs()
    assert [line.partition(",")[0] for line in said] == [f"note: run {RUN_ID}"]
    assert not pool.sessions[LIAR].closed
    for request_id in (request_ids[0], 99):
        liar._coming.put(Frame("refused", {"id": request_id, "reason": "slow"}).pack())
    refused = iter(lambda: pool.inbox.get(timeout=10)[1], None)
    assert next(frame for frame in refused if frame.kind == "refused").data["id"] == 99
