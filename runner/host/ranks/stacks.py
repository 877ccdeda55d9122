"""Stack dumps: the Python stacks of every rank on this host, appended to the run's log `stacks`.

They are written by the faulthandler that `sitecustomize` installed in the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import datetime, timezone
from typing import Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from runner.core.wire.order import Order
from runner.core.wire.paths import (
    DUMP_END,
    DUMP_HEADER,
    PROCESS_HEADER,
    STACKS_LOG,
    RunPaths,
)
from runner.host.process import bounded_child, procfs
from runner.host.storage.run_folder import append, read_rank_records

DUMP_TIMEOUT_S = 10.0  # for a dump, which runs in a child
DUMP_SIGNAL = 60  # as in `sitecustomize`
REPLY_TIMEOUT_S = 2.0
QUIET_PERIOD_S = 0.05
POLL_INTERVAL_S = 0.01
MEMORY_FILES = ("/memfd:runner-stacks", "/dev/shm/runner-stacks")
MAX_WORKERS = 8  # child processes of a rank that are dumped (workers of data loaders)
STATE_TEXTS = {
    "R": "it runs",
    "S": "it sleeps",
    "D": "it waits in the kernel, for a disk or a driver",
    "T": "it was stopped (SIGSTOP)",
    "t": "a debugger holds it",
}


class StackTarget(NamedTuple):
    """A process to dump: its rank, its pid, and its memory file, "" for none."""

    rank: int
    pid: int
    memory_file: str


def start_dump(folder: RunPaths, order: Order, reason: str) -> bounded_child.BoundedChild:
    """Start a dump to the log in a child.

    The child closes our files: otherwise it would hold the run lock of a dead supervisor.
    """

    def dump() -> None:
        procfs.close_fds_except({bounded_child.REPORT_FD})
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        stack_text = "".join(_format_stacks(_find_targets(folder, order)))
        text = DUMP_HEADER.format(when=when, why=reason) + stack_text + DUMP_END
        append(folder.stream_log(order.attempt, STACKS_LOG, "out"), text.encode())
        bounded_child.report_facts(when=when)

    return bounded_child.BoundedChild(dump, DUMP_TIMEOUT_S)


def result(child: bounded_child.BoundedChild) -> Tuple[str, str]:
    """Return when a dump was made, and why it failed, "" if it did not."""
    report = child.report()
    if "when" in report:
        return report["when"], ""
    timeout_text = f"no answer within {DUMP_TIMEOUT_S:g} s" if child.timed_out else ""
    return "", timeout_text or child.text or "its child ended without a report"


def _find_targets(folder: RunPaths, order: Order) -> List[StackTarget]:
    processes = procfs.table()
    targets: List[StackTarget] = []
    for kind, rank, data in read_rank_records(folder.attempt_folder(order.attempt), set()):
        program = processes.get(data["pid"]) if kind == "start" else None
        if program is None or program.ppid != data["parent"]:
            continue
        pids = (data["pid"], *procfs.descendants(data["pid"], processes))
        alive = [pid for pid in pids if processes[pid].alive]
        found = [StackTarget(rank, pid, find_memory_file(pid)) for pid in alive]
        prepared = [each for each in found if each.memory_file]
        targets += prepared[: 1 + MAX_WORKERS] or found[:1]
    return targets


def _format_stacks(targets: Sequence[StackTarget]) -> Iterator[str]:
    texts = dump({each.pid: each.memory_file for each in targets if each.memory_file})
    for target in targets:
        program = procfs.read_text(f"/proc/{target.pid}/comm").strip()
        text = texts.get(target.pid, "")
        source = "faulthandler" if text else f"nothing: {_failure_reason(target)}"
        yield PROCESS_HEADER.format(rank=target.rank, pid=target.pid, program=program, how=source)
        if text:
            yield text.rstrip("\n") + "\n"


def _failure_reason(target: StackTarget) -> str:
    owner = procfs.process_owner(target.pid)
    if not target.memory_file and owner and not any(procfs.fd_links(target.pid)):
        return f"it runs as {owner}, and hides it from this user"
    if not target.memory_file:
        return "it is not a Python that the runner prepared"
    state = status_field(target.pid, "State")[:1]
    kernel_function = procfs.read_text(f"/proc/{target.pid}/wchan").strip("0\n")
    suffix = f", in {kernel_function}" if kernel_function else ""
    return f"it did not answer; {STATE_TEXTS.get(state, 'it is gone')}{suffix}"


def status_field(pid: int, name: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def find_memory_file(pid: int) -> str:
    """Return the memory file of a process that handles our signal, "" if it does not."""
    caught_signals = int(status_field(pid, "SigCgt") or "0", 16)
    if caught_signals >> (DUMP_SIGNAL - 1) & 1:  # it may be one of its own
        for path, target in procfs.fd_links(pid):
            if target.startswith(MEMORY_FILES):
                return path
    return ""


def dump(memory_files: Mapping[int, str]) -> Dict[int, str]:
    """Return what processes write to these files when they are signalled, in parallel.

    A forked child shares the file of its parent: such processes are signalled one by one.
    """
    texts: Dict[int, str] = {}
    queues: Dict[int, List[int]] = {}
    for pid in memory_files:
        with contextlib.suppress(OSError):
            queues.setdefault(os.stat(memory_files[pid]).st_ino, []).append(pid)
    deadline = time.monotonic() + 2 * REPLY_TIMEOUT_S

    def read_all(pids: Sequence[int]) -> None:
        for pid in pids:
            if time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    texts[pid] = _signal_and_read(pid, memory_files[pid])

    threads = [threading.Thread(target=read_all, args=(pids,)) for pids in queues.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def _signal_and_read(pid: int, memory_file: str) -> str:
    """Signal a process; return what it writes until its file does not grow for a moment."""
    with open(memory_file, encoding="utf-8", errors="replace") as file:
        begin = size = file.seek(0, os.SEEK_END)
        if find_memory_file(pid):  # the program may have replaced the handler since
            os.kill(pid, DUMP_SIGNAL)
        now = grew_at = time.monotonic()
        deadline = now + REPLY_TIMEOUT_S
        while now < deadline and (size == begin or now - grew_at <= QUIET_PERIOD_S):
            time.sleep(POLL_INTERVAL_S)
            now = time.monotonic()
            if os.fstat(file.fileno()).st_size != size:
                size = os.fstat(file.fileno()).st_size
                grew_at = now
        file.seek(begin)
        return file.read()
