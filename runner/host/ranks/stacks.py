"""The Python stacks of every rank on this host, added to the log `stacks` of its run.

By py-spy where it is installed beside the task's interpreter or on the PATH, which reads a process
from outside; else by what `sitecustomize` prepared in the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import time
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from runner.core.model.order import Order
from runner.core.outcome.stacks import DUMP, END, PROCESS
from runner.core.protocol.paths import STACKS, RunFolder
from runner.host.process import bounded_child, procfs
from runner.host.ranks.sitecustomize import SIGNAL
from runner.host.storage.run_folder import rank_records

LIMIT_S = 10.0
"""How long all of it may take; whoever calls does it in a child."""

SPY_S = 4.0
ANSWER_S, QUIET_S, LOOK_S = 2.0, 0.05, 0.01
WORKERS = 8
"""Besides its first process, so many of a rank's are asked (data loaders' workers)."""

MEMORY = "/memfd:runner-stacks"
STATES = {
    "R": "it runs",
    "S": "it sleeps",
    "D": "it waits in the kernel, for a disk or a driver",
    "T": "it was stopped (SIGSTOP)",
    "t": "a debugger holds it",
}


class Asked(NamedTuple):
    """A process to be asked: of which rank, and its memory file, "" for none."""

    rank: int
    pid: int
    memory: str


def append(folder: RunFolder, order: Order, why: str) -> Tuple[str, str]:
    """Add the stacks of all ranks to the log; return when, and what was added.

    Raises:
        OSError: It cannot be written.
    """
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    python = order.rank_prefix[0] if order.rank_prefix else order.argv[0]
    told = "".join(_told(_asked(folder, order), python))
    text = (DUMP.format(when=when, why=why) + told + END).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(folder.stream(order.attempt, STACKS, "out"), flags, 0o600)
    try:
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
    return when, text.decode()


def _asked(folder: RunFolder, order: Order) -> List[Asked]:
    """Return the processes to ask of each rank, its own program first."""
    processes = procfs.table()
    found: List[Asked] = []
    for kind, rank, data in rank_records(folder.attempt(order.attempt), set()):
        if kind != "start" or processes.get(data["pid"], _NOBODY).ppid != data["shim"]:
            continue
        family = (data["pid"], *procfs.descendants(data["pid"], processes))
        mine = [Asked(rank, each, _memory(each)) for each in family if processes[each].alive]
        found += [each for each in mine if each.memory][: 1 + WORKERS] or mine[:1]
    return found


_NOBODY = procfs.Process(0, "X", 0, 0, 0)


def _memory(pid: int) -> str:
    """Return the memory file of a process that catches our signal, "" for one that does not."""
    caught = _status(pid, "SigCgt")
    if not caught or not int(caught, 16) >> (SIGNAL - 1) & 1:
        return ""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(MEMORY):
                    return path
    return ""


def _told(asked: Sequence[Asked], python: str) -> Iterator[str]:
    spy = bounded_child.find(
        "py-spy", {"PATH": f"{os.path.dirname(python)}:{os.environ.get('PATH', '')}"}
    )
    spied = _spied(spy, asked) if spy else {}
    dumped = _dumped([each for each in asked if each.memory and each.pid not in spied])
    for each in asked:
        program = procfs.read_text(f"/proc/{each.pid}/comm").strip()
        text, how = spied.get(each.pid, ""), "py-spy"
        if not text:
            text, how = dumped.get(each.pid, ""), "faulthandler"
        if not text:
            how = f"nothing: {_why_not(each)}"
        yield PROCESS.format(rank=each.rank, pid=each.pid, program=program, how=how)
        if text:
            yield text.rstrip("\n") + "\n"


def _why_not(asked: Asked) -> str:
    """Return why a process told nothing."""
    if not asked.memory:
        return "it is no Python that was prepared for it, and there is no py-spy"
    state = _status(asked.pid, "State")[:1]
    where = procfs.read_text(f"/proc/{asked.pid}/wchan").strip("0\n")
    place = f", in {where}" if where else ""
    return f"it did not answer; {STATES.get(state, 'it is gone')}{place}"


def _status(pid: int, name: str) -> str:
    for line in procfs.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _dumped(asked: Sequence[Asked]) -> Dict[int, str]:
    """Return what processes write when they are signalled, side by side.

    A child that was forked shares the file of its parent: of those, one after the other.
    """
    texts: Dict[int, str] = {}
    turns: Dict[int, List[Asked]] = {}
    for each in asked:
        with contextlib.suppress(OSError):
            turns.setdefault(os.stat(each.memory).st_ino, []).append(each)
    until = time.monotonic() + 2 * ANSWER_S
    while turns and time.monotonic() < until:
        texts.update(_answers([waiting.pop(0) for waiting in turns.values()]))
        turns = {inode: waiting for inode, waiting in turns.items() if waiting}
    return texts


class _Waiting:
    """The memory file of one process, and how much was in it before."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._begin = self._size = os.fstat(self._file).st_size
        self._grew = time.monotonic()

    def answered(self) -> bool:
        """Whether it has said something, and nothing more for a moment."""
        size, now = os.fstat(self._file).st_size, time.monotonic()
        if size != self._size:
            self._size, self._grew = size, now
        return size > self._begin and now - self._grew > QUIET_S

    def take(self) -> str:
        """Return what it has said."""
        try:
            said = os.pread(self._file, self._size - self._begin, self._begin)
        finally:
            os.close(self._file)
        return said.decode(errors="replace")


def _answers(asked: Sequence[Asked]) -> Dict[int, str]:
    waiting: Dict[int, _Waiting] = {}
    for each in asked:
        with contextlib.suppress(OSError):
            waiting[each.pid] = _Waiting(each.memory)
            if _memory(each.pid):  # it may have thought better of it
                os.kill(each.pid, SIGNAL)
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until and not all([one.answered() for one in waiting.values()]):  # noqa: C419 (each of them looks)
        time.sleep(LOOK_S)
    return {pid: one.take() for pid, one in waiting.items()}


def _spied(spy: str, asked: Sequence[Asked]) -> Dict[int, str]:
    """Return what py-spy reads, of those processes it can read."""
    running: List[Tuple[int, subprocess.Popen[bytes]]] = []
    for each in asked:
        words = [spy, "dump", "--json", "--pid", str(each.pid)]
        with contextlib.suppress(OSError):
            quiet = subprocess.DEVNULL
            running.append(
                (
                    each.pid,
                    subprocess.Popen(words, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet),
                )
            )
    until = time.monotonic() + SPY_S
    texts: Dict[int, str] = {}
    for pid, process in running:
        try:
            said, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            texts[pid] = as_faulthandler(json.loads(said))
    return {pid: text for pid, text in texts.items() if text}


def as_faulthandler(threads: Sequence[Mapping[str, Any]]) -> str:
    """Return what py-spy tells as JSON in the form of faulthandler; the main thread is current."""
    lines: List[str] = []
    for thread in threads:
        shown = f' "{thread["thread_name"]}"' if thread["thread_name"] else ""
        word = "Current thread" if thread["os_thread_id"] == thread["pid"] else "Thread"
        lines.append(f"{word} {thread['os_thread_id']}{shown} (most recent call first):")
        lines += [
            f'  File "{frame["filename"]}", line {frame["line"]} in {_plain(frame["name"])}'
            for frame in thread["frames"]
        ]
    return "\n".join(lines)


def _plain(name: str) -> str:
    """Return a function's name without its class, as faulthandler has it."""
    return name if name.startswith("<") else name.rpartition(".")[2]


def child(folder: RunFolder, order: Order, why: str, *, show: bool) -> bounded_child.Child:
    """Begin it in a child with a deadline; with `show`, its report has the text as well.

    It keeps none of our files open: with them it would hold the lock of a supervisor that died.
    """

    def work() -> None:
        procfs.close_all_but({bounded_child.REPORT})
        when, text = append(folder, order, why)
        bounded_child.tell(when=when, **({"text": text} if show else {}))

    return bounded_child.Child(work, LIMIT_S)


def outcome(done: bounded_child.Child) -> Tuple[Dict[str, str], str]:
    """Return what such a child told, `when` and `text`; and why it could not, "" if it could."""
    told = done.told()
    if "when" in told:
        return told, ""
    late = f"no answer within {LIMIT_S:g} s" if done.late else ""
    return {}, late or done.text or "it ended without a word"
