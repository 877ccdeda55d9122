"""Judge of a run after each event: no process left, no byte lost, every record readable."""

from __future__ import annotations

import enum
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.lab.chaos.runs import LINE_PADDING, Run, foreign_processes, wait_growth
from tests.lab.lab import Lab
from tests.lab.waiting import PATIENCE

CLEANUP_TIMEOUT_S = 25.0
"""How long hosts may take to be rid of a run that is over; the line of an event shows what they took.

This and all other limits here are those of an idle machine, and are multiplied by PATIENCE.
"""

GROWTH_TIMEOUT_S = 15.0
ENDS = ("succeeded", "failed", "stopped")


class Fate(enum.Enum):
    GOES_ON = "goes on"
    ENDS = "ends"
    EITHER = "goes on, or ends"


@dataclass(frozen=True)
class Expectation:
    """What the rules say of a run after an event.

    Attributes:
        codes: The exit codes its controller may end with; any documented one if empty.
        undo: Repairs the lab, once every controller has ended that shall.
    """

    fate: Fate
    codes: frozenset[int] = frozenset()
    within_s: float = 30.0
    says: str = ""
    undo: Callable[[], object] = lambda: None


DOCUMENTED = frozenset({0, 1, 3, 4, 5, 129, 130, 143})


def ends(*codes: int, **more: object) -> Expectation:
    return Expectation(Fate.ENDS, frozenset(codes), **more)  # type: ignore[arg-type]


GOES_ON = Expectation(Fate.GOES_ON)


def await_controller(run: Run, expect: Expectation) -> Iterator[str]:
    """Wait for the end of a run's controller; yield what is wrong with it."""
    process = run.controller.process
    deadline = time.monotonic() + expect.within_s * PATIENCE
    while process.poll() is None:
        if time.monotonic() > deadline:
            yield (
                f"{run.name}: its controller did not end in {expect.within_s * PATIENCE:g} s:\n"
                f"{run.controller_messages}"
            )
            return
        time.sleep(0.02)
    if process.returncode not in (expect.codes or DOCUMENTED):
        allowed = sorted(expect.codes or DOCUMENTED)
        yield (
            f"{run.name}: exit code {process.returncode}, not one of {allowed}:\n"
            f"{run.controller_messages}"
        )
    if expect.says not in run.controller_messages:
        yield f"{run.name}: it does not say {expect.says!r}:\n{run.controller_messages}"
    if re.search("^Traceback", run.controller_messages, re.MULTILINE):
        yield f"{run.name}: a traceback:\n{run.controller_messages}"


def await_clean(
    lab: Lab, others: list[Run], seconds: float = CLEANUP_TIMEOUT_S
) -> tuple[int, list[str]]:
    """Wait until only the `others` run on the hosts; return the orphans, counted and named."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        leftovers = {name: foreign_processes(host, others) for name, host in lab.hosts.items()}
        count = sum(map(len, leftovers.values()))
        if not count or time.monotonic() > deadline:
            return count, [
                f"left on {name}: {each}" for name, rows in leftovers.items() for each in rows
            ]
        time.sleep(0.03)


def check_goes_on(run: Run) -> Iterator[str]:
    code = run.controller.process.poll()
    if run.is_followed and code is not None:
        yield f"{run.name}: its controller ended with {code}:\n{run.controller_messages}"
    for node, rank in run.ranks():
        alive = {each.pid for each in run.lab[node].processes(run.name)}
        if run.pids[rank] not in alive:
            yield f"{run.name}: rank {rank} on {node} is gone"
        if "stopping" in run.kinds(node):
            yield f"{run.name}: it is stopped on {node}: {run.events(node)[-3:]}"
    before = run.log_sizes()
    if not wait_growth(run, before, GROWTH_TIMEOUT_S):
        yield f"{run.name}: its ranks write no more: {before}, {run.log_sizes()}"
    yield from check_logs(run, whole=False)
    if run.is_followed:
        yield from check_fetched(run)


def check_fetched(run: Run) -> Iterator[str]:
    """Yield what the controller does not fetch although it could."""
    wanted = {(node, rank): len(run.log(node, rank, "out")) for node, rank in run.ranks()}
    deadline = time.monotonic() + GROWTH_TIMEOUT_S * PATIENCE
    late = dict(wanted)
    while late and time.monotonic() < deadline:
        late = {k: n for k, n in late.items() if len(run.local_log(*k, "out")) < n}
        time.sleep(0.03)
    for (node, rank), size in late.items():
        got = len(run.local_log(node, rank, "out"))
        yield f"{run.name}: of rank {rank} on {node} {got} bytes are here, {size} there"


def check_logs(run: Run, *, whole: bool) -> Iterator[str]:
    """Yield what is wrong with the logs: on the hosts, and here (all of it, if `whole`)."""
    for node, rank in run.ranks():
        for stream in ("out", "err"):
            label = f"{run.name}: rank {rank} on {node}, {stream}"
            here, there = run.local_log(node, rank, stream), run.log(node, rank, stream)
            if stream == "out":
                yield from (f"{label}: {what}" for what in check_numbering(there, run.name, rank))
            if not there.startswith(here):
                yield f"{label}: what is here is no beginning of what is there"
            elif whole and node not in run.may_miss_bytes | run.powerless and here != there:
                yield f"{label}: {len(here)} bytes are here, {len(there)} there"


def check_numbering(text: bytes, name: str, rank: int) -> Iterator[str]:
    """Yield what is wrong with numbered lines; the last may be torn."""
    *lines, torn = text.split(b"\n")
    wanted = [f"{name} {rank} {number} {LINE_PADDING}".encode() for number in range(len(lines) + 1)]
    if lines != wanted[:-1]:
        at = next(n for n, line in enumerate(lines) if line != wanted[n])
        yield f"line {at} is {lines[at][:80]!r}"
    if not wanted[-1].startswith(torn):
        yield f"it ends with {torn[:80]!r}"


def check_console(run: Run) -> Iterator[str]:
    """Yield what is wrong with what the controller showed: every line once, in order."""
    line = rf"^\[(\w+):(\d+)\] {run.name} (\d+) (\d+) {LINE_PADDING}$"
    found = re.findall(line, run.controller.out, re.MULTILINE)
    for node, rank in run.ranks():
        shown = [int(n) for at, r, _, n in found if at == node and int(r) == rank]
        if shown != list(range(len(shown))):
            at = next(n for n, number in enumerate(shown) if n != number)
            yield f"{run.name}: on the console rank {rank} has {shown[at]} for {at}"
        have = run.local_log(node, rank, "out").count(b"\n")
        if len(shown) not in (have, have - 1, have + 1):
            yield f"{run.name}: rank {rank}: {len(shown)} lines on the console, {have} in its file"


def check_records(run: Run) -> Iterator[str]:
    for node in run.lab.hosts:
        folder = run.folder(node)
        label = f"{run.name} on {node}"
        if not (folder / "order.json").exists():
            continue  # it was ended before its start
        lines = (folder / "events.jsonl").read_bytes() if run.events(node) else b""
        good = len(run.events(node))
        torn = len([line for line in lines.split(b"\n") if line]) - good
        if torn and node not in run.powerless | run.disk_was_full:
            yield f"{label}: {torn} lines of events.jsonl cannot be read"
        if node in run.powerless:
            continue
        if run.last_kind(node) != "ended":
            yield f"{label}: its record does not end: {run.kinds(node)[-4:]}"
        elif (state := run.events(node)[-1]["state"]) not in ENDS:
            yield f"{label}: state {state}"


def check_result(run: Run) -> Iterator[str]:
    code = run.controller.process.returncode
    if not (run.controller_folder / "plan.json").exists():
        return  # nothing was started
    try:
        result = json.loads((run.controller_folder / "result.json").read_text())
    except (OSError, ValueError) as error:
        yield f"{run.name}: result.json: {error!r}\n{run.controller_messages}"
        return
    if result["exit_code"] != code:
        yield f"{run.name}: exit code {code}, on record {result['exit_code']}"
