"""Stack dumps: the Python stacks of every rank on this host, appended to the run's log `stacks`.

They come from py-spy, if it is beside the task's interpreter or on the PATH, which reads a process
from outside; else from the faulthandler that `sitecustomize` installed in the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from runner.core.model.container import Container
from runner.core.model.plan import Order
from runner.core.outcome.stacks import DUMP_END, DUMP_HEADER, PROCESS_HEADER, USAGE_LINE
from runner.core.protocol.paths import STACKS_LOG, RunPaths, rank_source
from runner.host.process import bounded_child, pid_namespace, procfs
from runner.host.ranks import fault_dump
from runner.host.storage.run_folder import append, read_rank_records

DUMP_TIMEOUT_S = 10.0  # for a dump, which runs in a child
PY_SPY_TIMEOUT_S = 4.0
ENGINE_TIMEOUT_S = 6.0
MAX_WORKERS = 8  # child processes of a rank that are dumped (workers of data loaders)
HZ = os.sysconf("SC_CLK_TCK")
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
    cpu_s: float = 0.0  # what it has used so far
    printed: int = 0  # bytes of its rank's output so far
    inner_pid: int = 0  # in its container, where it is another user's: to be asked there


def start_dump(folder: RunPaths, order: Order, reason: str) -> bounded_child.BoundedChild:
    """Start a dump to the log in a child.

    The child closes our files: otherwise it would hold the run lock of a dead supervisor.
    """

    def dump() -> None:
        procfs.close_fds_except({bounded_child.REPORT_FD})
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        python = order.rank_prefix[0] if order.rank_prefix else order.argv[0]
        stack_text = "".join(_format_stacks(_find_targets(folder, order), python, order.container))
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
    """Return the processes to dump of each rank, its own program first."""
    processes = procfs.table()
    targets: List[StackTarget] = []
    for kind, rank, data in read_rank_records(folder.attempt_folder(order.attempt), set()):
        program = processes.get(data["pid"]) if kind == "start" else None
        if program is None or program.ppid != data["parent"]:
            continue
        pids = (data["pid"], *procfs.descendants(data["pid"], processes))
        alive = [pid for pid in pids if processes[pid].alive]
        logs = [folder.stream_log(order.attempt, rank_source(rank), out) for out in ("out", "err")]
        printed = sum(os.stat(log).st_size for log in logs if os.path.exists(log))
        found = [
            StackTarget(
                *(rank, pid, fault_dump.find_memory_file(pid)),
                *(processes[pid].cpu_ticks / HZ, printed),
                _inner_pid(pid) if order.container and order.container.dump else 0,
            )
            for pid in alive
        ]
        prepared = [each for each in found if each.memory_file or each.inner_pid]
        targets += prepared[: 1 + MAX_WORKERS] or found[:1]
    return targets


def _inner_pid(pid: int) -> int:
    """Return the number in its container of a process that is hidden and handles our signal."""
    is_hidden = not pid_namespace.namespace_of(pid) and fault_dump.is_prepared(pid)
    return pid_namespace.inner_pid(pid) if is_hidden else 0


def _format_stacks(
    targets: Sequence[StackTarget], python: str, container: Optional[Container] = None
) -> Iterator[str]:
    path = f"{os.path.dirname(python)}:{os.environ.get('PATH', '')}"
    py_spy = bounded_child.find_program("py-spy", {"PATH": path})
    py_spy_texts = _by_py_spy(py_spy, targets) if py_spy else {}
    others = [each for each in targets if each.memory_file and each.pid not in py_spy_texts]
    faulthandler_texts = fault_dump.dump({each.pid: each.memory_file for each in others})
    hidden = [each for each in targets if each.inner_pid]
    if container is not None and hidden:
        faulthandler_texts.update(_from_inside(container, hidden))
    for target in targets:
        program = procfs.read_text(f"/proc/{target.pid}/comm").strip()
        text, source = py_spy_texts.get(target.pid, ""), "py-spy"
        if not text:
            text, source = faulthandler_texts.get(target.pid, ""), "faulthandler"
        if not text:
            source = f"nothing: {_failure_reason(target)}"
        yield PROCESS_HEADER.format(rank=target.rank, pid=target.pid, program=program, how=source)
        yield USAGE_LINE.format(cpu_s=target.cpu_s, printed=target.printed)
        if text:
            yield text.rstrip("\n") + "\n"


def _failure_reason(target: StackTarget) -> str:
    """Return why there is no stack of a process."""
    if target.inner_pid:
        return f"it runs as {procfs.process_owner(target.pid)}, and did not answer in its container"
    if not target.memory_file:
        return "it is not a Python that the runner prepared, and there is no py-spy"
    state = fault_dump.status_field(target.pid, "State")[:1]
    kernel_function = procfs.read_text(f"/proc/{target.pid}/wchan").strip("0\n")
    suffix = f", in {kernel_function}" if kernel_function else ""
    return f"it did not answer; {STATE_TEXTS.get(state, 'it is gone')}{suffix}"


def _from_inside(container: Container, targets: Sequence[StackTarget]) -> Dict[int, str]:
    """Return what processes of another user answer to a program in their container."""
    argv = (*container.dump, *(str(target.inner_pid) for target in targets))
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError, AttributeError):
        done = subprocess.run(
            argv,
            env={**os.environ, **container.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        )
        texts = json.loads(done.stdout)
        return {each.pid: str(texts.get(str(each.inner_pid), "")) for each in targets}
    return {}


def _by_py_spy(py_spy: str, targets: Sequence[StackTarget]) -> Dict[int, str]:
    """Return the stacks of the processes that py-spy can read."""
    running: List[Tuple[int, subprocess.Popen[bytes]]] = []
    for target in targets:
        argv = [py_spy, "dump", "--json", "--pid", str(target.pid)]
        with contextlib.suppress(OSError):
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=null)
            running.append((target.pid, process))
    deadline = time.monotonic() + PY_SPY_TIMEOUT_S
    texts: Dict[int, str] = {}
    for pid, process in running:
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            texts[pid] = as_faulthandler(json.loads(output))
    return {pid: text for pid, text in texts.items() if text}


def as_faulthandler(threads: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON of py-spy in the format of faulthandler; the main thread is current."""
    lines: List[str] = []
    for thread in threads:
        quoted_name = f' "{thread["thread_name"]}"' if thread["thread_name"] else ""
        title = "Current thread" if thread["os_thread_id"] == thread["pid"] else "Thread"
        lines.append(f"{title} {thread['os_thread_id']}{quoted_name} (most recent call first):")
        for frame in thread["frames"]:
            name = frame["name"]  # faulthandler has it without the class
            name = name if name.startswith("<") else name.rpartition(".")[2]
            lines.append(f'  File "{frame["filename"]}", line {frame["line"]} in {name}')
    return "\n".join(lines)
