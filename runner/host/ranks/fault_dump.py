"""Fault dumps: what Pythons write that `sitecustomize` prepared, when they are signalled.

    PYTHON -I -S fault_dump.py PID...

It imports nothing of ours: in a container whose processes are another user's, it runs inside, and
prints the dumps by pid, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Dict, List, Mapping, Sequence

DUMP_SIGNAL = 60  # as in `sitecustomize`
REPLY_TIMEOUT_S, QUIET_PERIOD_S, POLL_INTERVAL_S = 2.0, 0.05, 0.01
MEMFD_PREFIX = "/memfd:runner-stacks"


def status_field(pid: int, name: str) -> str:
    """Return a field of /proc/PID/status, "" for a process that is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def is_prepared(pid: int) -> bool:
    """Return whether a process handles our signal; it may be one of its own."""
    caught_signals = status_field(pid, "SigCgt")
    return bool(caught_signals) and bool(int(caught_signals, 16) >> (DUMP_SIGNAL - 1) & 1)


def find_memory_file(pid: int) -> str:
    """Return the memory file of a process that handles our signal, "" if it does not."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder) if is_prepared(pid) else ():
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith(MEMFD_PREFIX):
                    return f"{folder}/{name}"
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
    while queues and time.monotonic() < deadline:
        firsts = [queue.pop(0) for queue in queues.values()]
        texts.update(_signal_and_read({pid: memory_files[pid] for pid in firsts}))
        queues = {inode: queue for inode, queue in queues.items() if queue}
    return texts


def _signal_and_read(memory_files: Mapping[int, str]) -> Dict[int, str]:
    """Signal processes; return what each writes until its file does not grow for a moment."""
    files: Dict[int, int] = {}
    old_sizes: Dict[int, int] = {}
    for pid in memory_files:
        with contextlib.suppress(OSError):
            files[pid] = os.open(memory_files[pid], os.O_RDONLY)
            old_sizes[pid] = os.fstat(files[pid]).st_size
            if find_memory_file(pid):  # the program may have replaced the handler since
                os.kill(pid, DUMP_SIGNAL)
    sizes, grew_at = dict(old_sizes), dict.fromkeys(files, time.monotonic())
    deadline, waiting = time.monotonic() + REPLY_TIMEOUT_S, {*files}
    while waiting and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
        for pid in [*waiting]:
            size, now = os.fstat(files[pid]).st_size, time.monotonic()
            if size != sizes[pid]:
                sizes[pid], grew_at[pid] = size, now
            elif size > old_sizes[pid] and now - grew_at[pid] > QUIET_PERIOD_S:
                waiting.remove(pid)
    texts = {}
    for pid, file in files.items():
        written = os.pread(file, sizes[pid] - old_sizes[pid], old_sizes[pid])
        texts[pid] = written.decode(errors="replace")
        os.close(file)
    return texts


def main(pids: Sequence[int]) -> None:
    """Print the dumps of processes."""
    memory_files = {pid: find_memory_file(pid) for pid in pids}
    print(json.dumps(dump({pid: path for pid, path in memory_files.items() if path})))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
