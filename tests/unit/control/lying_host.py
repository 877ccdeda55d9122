"""A host whose answers are honest ones, mutated, and what it would say if it did not lie."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import queue
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.run.hosts import HostPool
from runner.core.errors import NotReady, Problem
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node
from runner.core.wire import events
from runner.core.wire.codec import MAGIC, Frame, FrameDecoder, decode, encode
from runner.core.wire.events import Event
from runner.core.wire.facts import Gpu, GpuProcess, Outcome, ProbeResult, SetupResult, Target
from runner.core.wire.order import Program
from runner.core.wire.paths import EVENTS_FILE
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import (
    GpuSample,
    HostRunStatus,
    PastAttempt,
    RunInfo,
    Sample,
)
from runner.core.wire.states import State
from runner.transport.base import Ending
from runner.ui.output import show
from tests.golden import builders
from tests.golden.builders import RUN_ID, failed, own, told
from tests.unit.core.outcome.test_stacks import DUMP

HONEST, LIAR = "a", "b"
CLOCKS = {"mono": 5.0, "wall": 1.7e9}
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 2**200, 0.5, -1e308, 1e308),
    *(float("nan"), float("inf"), "", "x", "0", "../../../../escaped", "/tmp/escaped", "a/b"),
    *("x/../../../../.bashrc.d/x_7", "\0", ESCAPE, "\ud800", "\n" * 50, "y" * 5000, [], {}),
    *[ESCAPE] * 8,
    *([None], {"": None}, {"node": "ghost"}, [[["deep"]]], "ghost", "events", "rank_0", b"".hex()),
    "9" * 5000,
    "\N{SUPERSCRIPT TWO}",
]
NASTY_WORDS = [b"9" * 5000, b"-1", b"1.2.3", b".", b"", b"x", ESCAPE.encode(), b"\xff", b"\n"]
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

    kinds: ClassVar[set[str]] = set()  # of the answers that became lies

    def __init__(self, chance: random.Random | None, *, leaves: bool) -> None:
        self._chance = chance
        self._leaves = leaves
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
    task="train",
    launched_by="ada@desk",
    launched_at=1.7e9,
    past_attempts=(PastAttempt(0, (HONEST, LIAR), told("rank 0 exited with 1")),),
    relaunches_left=1,
)
WRONG = "ValueError: x"
BODIES = [
    events.ProgramStarted(7),
    events.HubJoined(),
    events.RankStarted(1, 70, world_size=2, nodes=2, master="10.0.0.1:29512"),
    events.Stalled(30.0),
    events.ProgressResumed(),
    events.HubUnreachable("10.0.0.1:29513"),
    events.PeerLost(HONEST, "silent"),
    events.PeerDeparted(HONEST, "silent", 1),
    events.RelaunchPending(),
    events.Relaunching(1, (HONEST, LIAR), told("lost")),
    events.NotRelaunched("too few"),
    events.RankExited(1, 1, None, WRONG, "Traceback", exception=WRONG, facts={"path": "/bin"}),
    events.ProgramExited(1),
    events.Stopping(failed(LIAR, 1, 1)),
    events.Ended(State.FAILED, own(LIAR, "a rank failed"), 1, (), verified=True),
]


def elastic_plan(plan: Plan) -> Plan:
    """Return a plan whose ranks torch assigns."""
    program = Program(max_restarts=1)
    nodes = tuple(
        replace(node, ranks=(), order=replace(node.order, first_rank=None, program=program))
        for node in plan.nodes
    )
    return replace(plan, nodes=nodes, min_nodes=1, max_nodes=2)


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
    known = (INFO, "ada", State.RUNNING, True, 1.7e9)
    status = HostRunStatus(*known, node=request["node"])
    return [Answer("runs", {"runs": [encode(status)], "unreadable": 1, "now": 1.7e9})]


def recorded(plan: Any) -> list[Answer]:
    texts = {"plan": json.dumps(plan), "info": json.dumps(encode(INFO)), "config": "a: b\n"}
    return [Answer("run", {}, zlib.compress(json.dumps(texts).encode()))]


def record(_: dict[str, Any]) -> list[Answer]:
    return recorded(encode(PLAN))


def inventory(_: dict[str, Any]) -> list[Answer]:
    rows = [["log", "attempt_0/rank_0.out", 5, 7, 0o600]]
    rows += [["record", "events.jsonl", 5, 7, 0o600], ["output", "d/l", 0, 7, 0o777]]
    rows += [["samples", "attempt_0/samples.jsonl", len(sampled(LIAR)), 7, 0o600]]
    rows += [["output", f"d/{name}", 5, 7, 0o600] for name in ("model.pt", "gone")]
    listed = {"omitted_count": 0, "skipped": ["d/socket: it is no file"]}
    return [Answer("inventory", listed, zlib.compress(json.dumps(rows).encode()))]


def fetched(request: dict[str, Any]) -> list[Answer]:
    answers = []
    for _, path, offset, _, _ in request["files"]:
        file = {"file": path, "offset": offset, "eof": True}
        if path.endswith("gone"):
            answers.append(Answer("data", {**file, "error": "no such file"}))
        elif path.endswith("samples.jsonl"):
            answers.append(Answer("data", file, sampled(LIAR)))  # also of the host that is not it
        else:
            answers.append(Answer("data", file, b"12345"[offset:]))
    return [*answers, Answer("streamed", {})]


def sampled(node: str) -> bytes:
    users = (GpuProcess(7, 1 << 30, "eve", "python", RUN_ID),)
    gpu = GpuSample(0, "A100", 98, 1 << 30, 1 << 36, 300.0, 70.0, ("power",), users)
    load = (8, 50.0, 1 << 30, 1 << 36)
    return Sample(node, 0, 1.7e9, *load, (gpu,)).to_line().encode()


def probed(request: dict[str, Any]) -> list[Answer]:
    targets = [decode(Target, each) for each in request["targets"]]
    others = [target for target in targets if target.node != request["node"]]
    reached = [ProbeResult(target, Outcome.REACHED, 0.0002) for target in others]
    return [Answer("probed", {"results": encode(reached)})]


LOG = b'{"step": 1, "rate": 2.5}\nTraceback (most recent call last):\n'
EXITED = {"code": 0, "survivors": [], "timed_out": False}
CLEANED = {
    "runs": [RUN_ID],
    "releases": [],
    "environments": [],
    "kept": [],
    "in_use": [],
    "bytes": 7,
}
HONEST_ANSWERS: dict[str, Callable[[dict[str, Any]], list[Answer]]] = {
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
    "sample": lambda asked: [Answer("sampled", {"sample": json.loads(sampled(asked["node"]))})],
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
        super().__init__(replace(SPEC, lost_s=5.0), console, Inbox())
        self.connector = OneVisit(chance)
        self.chance = chance or random.Random()  # noqa: S311
        self.folder = folder

    def connect(self) -> None:
        self.sessions = {each.name: self.connector.open(each, self.inbox) for each in NODES}
