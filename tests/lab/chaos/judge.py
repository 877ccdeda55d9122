"""What must hold after each event: no process left, no byte lost, every record readable."""

from __future__ import annotations

import enum
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.lab.chaos.runs import WIDE, Run, grew, strangers
from tests.lab.lab import Lab

CLEAN_S = 25.0
"""How long hosts may take to be rid of a run that is over; the tables show what they took."""

GROW_S = 15.0
ENDS = ("succeeded", "failed", "stopped")


class Fate(enum.Enum):
    """What becomes of a run."""

    ON = "goes on"
    OVER = "ends"
    EITHER = "goes on, or ends"


def nothing() -> None:
    """Undo nothing."""


@dataclass(frozen=True)
class Expect:
    """What the rules say of a run after an event.

    Attributes:
        fate: What becomes of it.
        codes: The exit codes its controller may end with; any documented one if empty.
        within_s: How long it may take.
        says: What its controller has to say.
        undo: Repairs the lab, once every controller has ended that shall.
    """

    fate: Fate
    codes: frozenset[int] = frozenset()
    within_s: float = 30.0
    says: str = ""
    undo: Callable[[], None] = nothing


DOCUMENTED = frozenset({0, 1, 3, 4, 5, 129, 130, 143})


def over(*codes: int, **more: object) -> Expect:
    """Expect the end, with one of these exit codes."""
    return Expect(Fate.OVER, frozenset(codes), **more)  # type: ignore[arg-type]


ON = Expect(Fate.ON)


def await_controller(run: Run, expect: Expect) -> Iterator[str]:
    """Wait for the end of a run's controller; yield what is wrong with it."""
    process = run.controller.process
    end = time.monotonic() + expect.within_s
    while process.poll() is None:
        if time.monotonic() > end:
            yield f"{run.name}: its controller did not end in {expect.within_s:g} s:\n{run.said}"
            return
        time.sleep(0.02)
    if process.returncode not in (expect.codes or DOCUMENTED):
        wanted = sorted(expect.codes or DOCUMENTED)
        yield f"{run.name}: exit code {process.returncode}, not one of {wanted}:\n{run.said}"
    if expect.says not in run.said:
        yield f"{run.name}: it does not say {expect.says!r}:\n{run.said}"
    if re.search("^Traceback", run.said, re.MULTILINE):
        yield f"{run.name}: a traceback:\n{run.said}"


def await_clean(lab: Lab, others: list[Run], seconds: float = CLEAN_S) -> tuple[int, list[str]]:
    """Wait until only the `others` run on the hosts; return the orphans, counted and named."""
    end = time.monotonic() + seconds
    while True:
        left = {name: strangers(host, others) for name, host in lab.hosts.items()}
        count = sum(map(len, left.values()))
        if not count or time.monotonic() > end:
            return count, [
                f"left on {name}: {each}" for name, rows in left.items() for each in rows
            ]
        time.sleep(0.03)


def lives(run: Run) -> Iterator[str]:
    """Yield what is wrong with a run that must go on."""
    code = run.controller.process.poll()
    if run.followed and code is not None:
        yield f"{run.name}: its controller ended with {code}:\n{run.said}"
    for node, rank in run.ranks():
        alive = {each.pid for each in run.lab[node].processes(run.name)}
        if run.pids[rank] not in alive:
            yield f"{run.name}: rank {rank} on {node} is gone"
        if "stopping" in run.kinds(node):
            yield f"{run.name}: it is stopped on {node}: {run.events(node)[-3:]}"
    before = run.lines()
    if not grew(run, before, GROW_S):
        yield f"{run.name}: its ranks write no more: {before}, {run.lines()}"
    yield from bytes_of(run, whole=False)
    if run.followed:
        yield from catches_up(run)


def catches_up(run: Run) -> Iterator[str]:
    """Yield what the controller does not fetch although it could."""
    wanted = {(node, rank): len(run.log(node, rank, "out")) for node, rank in run.ranks()}
    end = time.monotonic() + GROW_S
    late = dict(wanted)
    while late and time.monotonic() < end:
        late = {k: n for k, n in late.items() if len(run.copy(*k, "out")) < n}
        time.sleep(0.03)
    for (node, rank), size in late.items():
        got = len(run.copy(node, rank, "out"))
        yield f"{run.name}: of rank {rank} on {node} {got} bytes are here, {size} there"


def bytes_of(run: Run, *, whole: bool) -> Iterator[str]:
    """Yield what is wrong with the logs: on the hosts, and here (all of it, if `whole`)."""
    for node, rank in run.ranks():
        for stream in ("out", "err"):
            where = f"{run.name}: rank {rank} on {node}, {stream}"
            here, there = run.copy(node, rank, stream), run.log(node, rank, stream)
            if stream == "out":
                yield from (f"{where}: {what}" for what in numbering(there, run.name, rank))
            if not there.startswith(here):
                yield f"{where}: what is here is no beginning of what is there"
            elif whole and node not in run.cut | run.powerless and here != there:
                yield f"{where}: {len(here)} bytes are here, {len(there)} there"


def numbering(text: bytes, name: str, rank: int) -> Iterator[str]:
    """Yield what is wrong with numbered lines; the last may be torn."""
    *lines, torn = text.split(b"\n")
    wanted = [f"{name} {rank} {number} {WIDE}".encode() for number in range(len(lines) + 1)]
    if lines != wanted[:-1]:
        at = next(n for n, line in enumerate(lines) if line != wanted[n])
        yield f"line {at} is {lines[at][:80]!r}"
    if not wanted[-1].startswith(torn):
        yield f"it ends with {torn[:80]!r}"


def console_of(run: Run) -> Iterator[str]:
    """Yield what is wrong with what the controller showed: every line once, in order."""
    line = rf"^\[(\w+):(\d+)\] {run.name} (\d+) (\d+) {WIDE}$"
    found = re.findall(line, run.controller.out, re.MULTILINE)
    for node, rank in run.ranks():
        shown = [int(n) for at, r, _, n in found if at == node and int(r) == rank]
        if shown != list(range(len(shown))):
            at = next(n for n, number in enumerate(shown) if n != number)
            yield f"{run.name}: on the console rank {rank} has {shown[at]} for {at}"
        have = run.copy(node, rank, "out").count(b"\n")
        if len(shown) not in (have, have - 1, have + 1):
            yield f"{run.name}: rank {rank}: {len(shown)} lines on the console, {have} in its file"


def records_of(run: Run) -> Iterator[str]:
    """Yield what is wrong with the record of a run that is over, on every host."""
    for node in run.lab.hosts:
        folder = run.folder(node)
        where = f"{run.name} on {node}"
        if not (folder / "format").exists():
            continue  # it was ended before its start
        try:
            state = json.loads((folder / "state.json").read_text())["state"]
        except (OSError, ValueError, KeyError) as error:
            yield f"{where}: state.json: {error!r}"
            continue
        lines = (folder / "events.jsonl").read_bytes() if run.events(node) else b""
        good = len(run.events(node))
        torn = len([line for line in lines.split(b"\n") if line]) - good
        if torn and node not in run.powerless | run.torn:
            yield f"{where}: {torn} lines of events.jsonl cannot be read"
        if node in run.powerless:
            continue
        if run.last(node) != "ended":
            yield f"{where}: its record does not end: {run.kinds(node)[-4:]}, state {state}"
        elif state not in ENDS:
            yield f"{where}: state {state}"


def result_of(run: Run) -> Iterator[str]:
    """Yield what is wrong with the record of the controller."""
    code = run.controller.process.returncode
    if not (run.here / "plan.json").exists():
        return  # nothing was started
    try:
        result = json.loads((run.here / "result.json").read_text())
    except (OSError, ValueError) as error:
        yield f"{run.name}: result.json: {error!r}\n{run.said}"
        return
    if result["exit_code"] != code:
        yield f"{run.name}: exit code {code}, on record {result['exit_code']}"
