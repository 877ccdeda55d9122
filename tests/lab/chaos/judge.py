"""Judge of a run after each event: no process left, no byte lost, every record readable."""

from __future__ import annotations

import contextlib
import enum
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.lab.chaos.runs import LINE_PADDING, Run, foreign_processes
from tests.lab.lab import Lab
from tests.lab.waiting import PATIENCE, TimedOut, wait_until

CLEANUP_TIMEOUT_S = 25.0
"""How long hosts may take to be rid of a run that is over.

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
    """What the rules say of a run after an event."""

    fate: Fate
    codes: frozenset[int] = frozenset()  # of its controller; any documented one if empty
    within_s: float = 30.0
    says: str = ""
    undo: Callable[[], object] = lambda: None  # once every controller has ended that shall


DOCUMENTED = frozenset({0, 1, 3, 4, 5, 129, 130, 143})


def ends(*codes: int, **more: object) -> Expectation:
    return Expectation(Fate.ENDS, frozenset(codes), **more)  # type: ignore[arg-type]


GOES_ON = Expectation(Fate.GOES_ON)


def await_controller(run: Run, expect: Expectation) -> Iterator[str]:
    """Wait for the end of a run's controller; yield what is wrong with it."""
    limit_s = expect.within_s * PATIENCE
    try:
        code = run.controller.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        yield f"{run.name}: its controller did not end in {limit_s:g} s:\n{run.controller_messages}"
        return
    if code not in (expect.codes or DOCUMENTED):
        allowed = sorted(expect.codes or DOCUMENTED)
        yield f"{run.name}: exit code {code}, not one of {allowed}:\n{run.controller_messages}"
    if expect.says not in run.controller_messages:
        yield f"{run.name}: it does not say {expect.says!r}:\n{run.controller_messages}"
    if re.search("^Traceback", run.controller_messages, re.MULTILINE):
        yield f"{run.name}: a traceback:\n{run.controller_messages}"


def await_clean(lab: Lab, others: list[Run], seconds: float = CLEANUP_TIMEOUT_S) -> list[str]:
    """Wait until only the `others` run on the hosts; return the orphans."""
    orphans: list[str] = []

    def is_clean() -> bool:
        orphans[:] = [
            f"left on {name}: {each}"
            for name, host in lab.hosts.items()
            for each in foreign_processes(host, others)
        ]
        return not orphans

    with contextlib.suppress(TimedOut):
        wait_until(is_clean, "the end of all others", seconds)
    return orphans


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

    def has_grown() -> bool:
        return all(size > before[rank] for rank, size in run.log_sizes().items())

    try:
        wait_until(has_grown, "lines of all ranks", GROWTH_TIMEOUT_S)
    except TimedOut:
        yield f"{run.name}: its ranks write no more: {before}, {run.log_sizes()}"
    yield from check_logs(run, whole=False)
    if run.is_followed:
        yield from check_fetched(run)


def check_fetched(run: Run) -> Iterator[str]:
    """Yield what the controller does not fetch although it could."""
    wanted = {(node, rank): len(run.log(node, rank, "out")) for node, rank in run.ranks()}

    def late() -> dict[tuple[str, int], int]:
        got = {key: len(run.local_log(*key, "out")) for key in wanted}
        return {key: size for key, size in got.items() if size < wanted[key]}

    with contextlib.suppress(TimedOut):
        wait_until(lambda: not late(), "all that is there", GROWTH_TIMEOUT_S)
    for (node, rank), size in late().items():
        there = wanted[node, rank]
        yield f"{run.name}: of rank {rank} on {node} {size} bytes are here, {there} there"


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
