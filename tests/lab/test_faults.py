"""Faults of all kinds: the last lines name host and cause, and the exit code is right."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher, program, rank_overrides
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(8)]

Setup = Callable[[Lab], contextlib.AbstractContextManager[object]]

LINES = 25
MEMORY = Path("/sys/fs/cgroup/memory")
FOLDER = "/dev/shm/fault"
PORT = 29777
RANK_1 = "first failure: rank 1 on node2"
STANDSTILL = "first failure: no rank made progress for"
RUN = ("cluster=lab", "grace_s=1")
STOP_ON_STALL = ("watch.stall_s=5", "watch.action=stop")


def only_on_node1(file: str) -> Setup:
    make = f"mkdir -p {FOLDER}; touch {FOLDER}/{file}"
    return lambda lab: lab["node1"].changed(make, f"rm -rf {FOLDER}")


def mounted(path: str, options: str) -> Setup:
    mount = f"mount -t tmpfs -o {options} tmpfs {path}"
    return lambda lab: lab["node2"].changed(mount, f"umount {path}")


@contextlib.contextmanager
def port_taken(lab: Lab) -> Iterator[None]:
    """Somebody listens where the ranks are to meet."""
    code = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(600)"
    listener = lab["node1"].popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: f":{PORT} " in lab["node1"].sh("ss -ltn"), "the thief to listen")
        yield
    finally:
        listener.kill()
        listener.wait()


@contextlib.contextmanager
def disk_full(lab: Lab) -> Iterator[None]:
    lab["node2"].fill_disk()
    yield
    lab["node2"].free_disk()


@dataclass(frozen=True)
class Fault:
    """What is typed, and what the last 25 lines, `result.json` and the exit code have to say."""

    args: tuple[str, ...]
    says: tuple[str, ...]
    cause: str = ""
    code: int = 1
    setup: Setup = contextlib.nullcontext


EVERYDAY = {
    "a rank raises, and one that noticed it ends first": Fault(
        (*RUN, *program("faulty.py", "1", "raise_slowly"), PLAIN_ENTRY),
        (RANK_1, "raised ValueError", "ValueError: lr must be positive"),
    ),
    "a module is missing on one host": Fault(
        (*RUN, *program("faulty.py", "1", "module", "extra_ops"), PLAIN_ENTRY),
        (RANK_1, "ModuleNotFoundError: No module named 'extra_ops'", "has no module extra_ops"),
        "module_missing",
        setup=only_on_node1("extra_ops.py"),
    ),
    "data are missing on one host": Fault(
        (*RUN, *program("faulty.py", "1", "data", f"{FOLDER}/train.bin"), PLAIN_ENTRY),
        (RANK_1, f"there is no {FOLDER}/train.bin on that host"),
        "file_missing",
        setup=only_on_node1("train.bin"),
    ),
    "the master's port is taken": Fault(
        ("cluster=lab", *rank_overrides("print=up"), f"cluster.master_port={PORT}"),
        (f"node1: cluster.master_port: port {PORT}", "set cluster.master_port to another port"),
        code=3,
        setup=port_taken,
    ),
    "the disk of one host is full": Fault(
        ("cluster=lab", *rank_overrides("print=up")),
        ("node2: cluster.workdir: ", "0 MiB free", "set cluster.workdir"),
        code=3,
        setup=disk_full,
    ),
}
OTHERS = {
    "a rank writes its end into torchrun's error file alone": Fault(
        (*RUN, *program("faulty.py", "1", "error_file")),
        (RANK_1, "exited with 1", "ValueError: told nobody but torchrun"),
    ),
    "a rank never comes to a collective": Fault(
        (*RUN, *program("hanging.py", "collective", "1"), PLAIN_ENTRY, *STOP_ON_STALL),
        (STANDSTILL, "rank 0 waits in all_reduce for rank 1 on node2, which is in load_batch"),
        "standstill",
    ),
    "a rank stops reading its data": Fault(
        (*RUN, *program("hanging.py", "pipe", "1"), PLAIN_ENTRY, *STOP_ON_STALL),
        (STANDSTILL, "read_shard"),
        "standstill",
    ),
    "a rank returns while the others go on": Fault(
        (*RUN, *program("hanging.py", "leave", "1")),
        ("rank 1 on node2 had exited with 0 before", "take part in every collective"),
        "peer_left",
    ),
    "a program is missing": Fault(
        (*RUN, *program("faulty.py", "1", "program", "no-ffmpeg", "-i"), PLAIN_ENTRY),
        (RANK_1, "no program no-ffmpeg on the PATH of the rank", "/usr/bin", "exec --cluster lab"),
        "program_missing",
    ),
    "a file system that the program writes to is full": Fault(
        (*RUN, *program("faulty.py", "1", "disk", "/mnt/weights.pt"), PLAIN_ENTRY),
        (RANK_1, "No space left on device", "/mnt is full there"),
        "disk_full",
        setup=mounted("/mnt", "size=2m,mode=1777"),
    ),
    "the shared memory is full": Fault(
        (*RUN, *program("faulty.py", "1", "locks"), PLAIN_ENTRY),
        (RANK_1, "the shared memory (/dev/shm: 1 MiB) is too small", "remount,size=16G"),
        "shared_memory",
        setup=mounted("/dev/shm", "size=1m,mode=1777"),
    ),
}


def last_lines(text: str) -> str:
    """What a person sees at the end, its line breaks left out."""
    return re.sub(r"\s+", " ", " ".join(text.splitlines()[-LINES:]))


@pytest.mark.parametrize(
    "name", [*EVERYDAY, *(pytest.param(name, marks=pytest.mark.all) for name in OTHERS)]
)
def test_a_fault_is_named(lab: Lab, on_lab: Launcher, name: str) -> None:
    """And nothing is left running; of a run, `why` says the same again."""
    fault = {**EVERYDAY, **OTHERS}[name]
    with fault.setup(lab):
        done = on_lab(*fault.args)
        assert done.code == fault.code, done
        said = last_lines(done.err if fault.code == 1 else done.out + done.err)
        for text in fault.says:
            assert text in said, done
        if fault.code == 1:
            assert done.result["diagnosis"]["cause"] == fault.cause
            again = on_lab("why", "--cluster", "lab")
            assert again.code == 0, again
            told = [line for line in again.out.splitlines() if not line.startswith("  | ")]
            assert [line for line in told if line not in done.err] == [], done
    assert lab.wait_idle() == {}


def test_a_rank_that_the_kernel_kills(lab: Lab, on_lab: Launcher) -> None:
    """Out of memory in its cgroup: the verdict has the kernel's own line, which root may read."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no memory controller of version 1 here")
    folder = MEMORY / f"runner-test-{on_lab.folder.parent.name[-20:]}"
    limit = f"mkdir {folder} && echo 48M > {folder}/memory.limit_in_bytes"
    words = (*RUN, *program("faulty.py", "1", "memory", str(folder)))
    with lab["node2"].changed(limit, f"rmdir {folder} || true"):
        done = on_lab(*words, PLAIN_ENTRY, "cluster.ssh.user=root")
    assert done.code == 1, done
    said = last_lines(done.err)
    assert f"{RANK_1} was killed by the kernel" in said, done
    assert "memory ran out on that host" in said
    assert done.result["diagnosis"]["cause"] == "memory"
