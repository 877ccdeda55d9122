"""Faults that befall one rank of a run: its host and the cause stand in the last lines of it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, Launcher, Result

FAULTY = str(PROGRAMS / "faulty.py")
LINES = 25
BOUND_S = 20.0
MEMORY = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Fault:
    """What happens to rank 2 on node3, and what is to be read of it."""

    name: str
    words: tuple[str, ...]
    says: tuple[str, ...]
    cause: str = ""


FAULTS = (
    Fault("it raises", ("raise",), ("exited with 1", "ValueError: lr must be positive")),
    Fault(
        "it raises from another",
        ("chain",),
        ("exited with 1", "RuntimeError: the configuration has no lr", "KeyError: 'lr'"),
    ),
    Fault("it exits without a word", ("exit", "3"), ("exited with 3",)),
    Fault(
        "compiled code crashes",
        ("segfault",),
        ("was killed by SIGSEGV", "why: compiled code crashed", "PYTHONFAULTHANDLER=1"),
        "sigsegv",
    ),
    Fault(
        "a bus error",
        ("signal", str(int(signal.SIGBUS))),
        ("was killed by SIGBUS", "a full /dev/shm"),
        "sigbus",
    ),
    Fault(
        "somebody kills it",
        ("signal", str(int(signal.SIGKILL))),
        ("was killed by SIGKILL", "somebody or the kernel killed it"),
        "sigkill",
    ),
    Fault(
        "a module is missing there",
        ("module", "extra_ops"),
        ("ModuleNotFoundError: No module named 'extra_ops'", "has no module extra_ops"),
        "module_missing",
    ),
    Fault(
        "data are missing there",
        ("data", "/dev/shm/train.bin"),
        ("there is no /dev/shm/train.bin on that host",),
        "file_missing",
    ),
    Fault("a disk is full", ("full",), ("a disk of that host is full",), "disk_full"),
    Fault(
        "a script of long ago",
        ("arguments",),
        ("exited with 2", "the program does not take --local-rank", "LOCAL_RANK"),
        "local_rank_unknown",
    ),
)


@pytest.fixture
def there(lab: Lab) -> Iterator[None]:
    """What every host but node3 has."""
    for name, host in lab.hosts.items():
        if name != "node3":
            host.sh("touch /dev/shm/extra_ops.py /dev/shm/train.bin")
    yield
    for host in lab.hosts.values():
        host.sh("rm -rf /dev/shm/extra_ops.py /dev/shm/train.bin /dev/shm/__pycache__")


def launched(on_lab: Launcher, *words: str) -> Result:
    """Run it to its end."""
    args = json.dumps(["2", *words])
    return on_lab(
        *("cluster=lab", "stop.grace_s=1", f"task.script={FAULTY}"),
        *("task.args_style=raw", f"task.args={args}"),
        seconds=BOUND_S,
    )


def last_lines(text: str) -> str:
    """What a person sees at the end, its line breaks left out."""
    return re.sub(r"\s+", " ", " ".join(text.splitlines()[-LINES:]))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.usefixtures("there")
def test_a_fault_is_named(lab: Lab, on_lab: Launcher, fault: Fault) -> None:
    """The first failing rank, its host, its last words, and what is known of it; in time."""
    done = launched(on_lab, *fault.words)
    assert done.code == 1, done
    said = last_lines(done.err)
    for text in ("first failure: rank 2 on node3", *fault.says):
        assert text in said, done
    assert done.result["diagnosis"]["cause"] == fault.cause
    assert lab.leftovers() == {}
    again = on_lab("why", "--cluster", "lab")
    assert again.code == 0, again
    assert "first failure: rank 2 on node3" in again.out
    assert again.out.strip() in done.err


def test_a_rank_that_the_kernel_kills(lab: Lab, on_lab: Launcher) -> None:
    """Out of memory in its cgroup: the kernel's own line is in the verdict."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no memory controller of version 1 here")
    name = f"runner-test-{on_lab.folder.parent.name[-20:]}"
    folder = MEMORY / name
    lab["node3"].sh(f"mkdir {folder} && echo 48M > {folder}/memory.limit_in_bytes")
    try:
        done = launched(on_lab, "memory", str(folder))
        assert done.code == 1, done
        said = last_lines(done.err)
        assert "first failure: rank 2 on node3 was killed by the kernel" in said, done
        assert "memory ran out on that host" in said
        assert done.result["diagnosis"]["cause"] == "memory"
    finally:
        lab["node3"].sh(f"rmdir {folder}", check=False)
