"""List of the faults under test: how each is caused, and what a person must read about it."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass

from tests.lab.causing import (
    FAULT_DIR,
    PORT,
    FaultSetup,
    MidRunFault,
    disk_full,
    kill_torchrun,
    no_setup,
    on_host,
    on_other_host,
    port_taken,
    power_off,
)
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, rank_overrides


@dataclass(frozen=True)
class Fault:
    """One fault, on node2 of two unless it says otherwise.

    Attributes:
        name: What happens, in words.
        args: What is typed after `python -m runner`; `{node2}` and the like become addresses.
        expected_output: What the last 25 lines of it have to hold, its line breaks left out.
        code: The exit code.
        cause: Its name in `result.json`.
        setup: Brings it about, and undoes it.
        during: Does so once every rank runs.
    """

    name: str
    args: tuple[str, ...]
    expected_output: tuple[str, ...]
    code: int = 1
    cause: str = ""
    setup: FaultSetup = no_setup
    during: MidRunFault | None = None


def program_args(name: str, *args: str) -> tuple[str, ...]:
    """A launch of one of the tests' programs on the whole lab."""
    return (
        "cluster=lab",
        "grace_s=1",
        f"task.script={PROGRAMS / name}",
        "task.args_style=raw",
        f"task.args={json.dumps(args)}",
    )


def rank_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    cause: str = "",
    setup: FaultSetup = no_setup,
) -> Fault:
    """A fault of rank 1 while the other sleeps; the supervisors start the ranks, without torch."""
    first = "first failure: rank 1 on node2"
    words = (*program_args("faulty.py", "1", *args), PLAIN_ENTRY)
    return Fault(name, words, (first, *expected_output), cause=cause, setup=setup)


def hang_fault(name: str, mode: str, expected_output: tuple[str, ...]) -> Fault:
    """A run that stands still because of rank 1; the supervisors start the ranks."""
    stop_on_stall = ("watch.stall_s=5", "watch.action=stop")
    run_args = (*program_args("hanging.py", mode, "1"), PLAIN_ENTRY, *stop_on_stall)
    first = "first failure: no rank made progress for"
    return Fault(name, run_args, (first, *expected_output), cause="standstill")


def refused_launch(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup = no_setup,
) -> Fault:
    """What keeps a launch from starting anything."""
    words = ("cluster=lab", *rank_overrides("print=up"), *args)
    return Fault(name, words, expected_output, code=3, setup=setup)


def check_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup,
    code: int = 3,
) -> Fault:
    """What `check` sees."""
    return Fault(name, ("check", "--cluster", "lab", *args), expected_output, code, setup=setup)


EVERYDAY = (
    rank_fault(
        "a rank raises, and one that noticed it ends first",
        ("raise_slowly",),
        ("raised ValueError", "ValueError: lr must be positive"),
    ),
    rank_fault(
        "the memory of a GPU runs out",
        ("gpu_memory",),
        ("exited with 1", "the GPU's memory ran out: 2.00 GiB more were requested"),
        "gpu_memory",
    ),
    rank_fault(
        "NCCL gives up waiting",
        ("nccl_timeout",),
        ("was killed by SIGABRT", "a collective was not joined by all ranks in time"),
        "nccl_watchdog",
    ),
    rank_fault(
        "a module is missing on one host",
        ("module", "extra_ops"),
        (
            "exited with 1",
            "ModuleNotFoundError: No module named 'extra_ops'",
            "has no module extra_ops",
        ),
        "module_missing",
        on_other_host("touch extra_ops.py"),
    ),
    rank_fault(
        "data are missing on one host",
        ("data", f"{FAULT_DIR}/train.bin"),
        (f"there is no {FAULT_DIR}/train.bin on that host",),
        "file_missing",
        on_other_host("touch train.bin"),
    ),
    refused_launch(
        "the master's port is taken",
        (f"cluster.master_port={PORT}",),
        (f"node1: cluster.master_port: port {PORT}", "set cluster.master_port to another port"),
        port_taken,
    ),
    refused_launch(
        "the disk of one host is full",
        (),
        ("node2: cluster.workdir: ", "0 MiB free", "set cluster.workdir"),
        disk_full,
    ),
)
"""What `make test` tries."""

OTHERS = (
    rank_fault("a rank exits without a word", ("exit", "3"), ("exited with 3",)),
    Fault(
        "a rank writes its end into torchrun's error file alone",
        program_args("faulty.py", "1", "error_file"),
        ("first failure: rank 1 on node2", "exited with 1", "ValueError: told nobody but torchrun"),
    ),
    rank_fault(
        "compiled code crashes",
        ("segfault",),
        ("was killed by SIGSEGV", "why: compiled code crashed", "PYTHONFAULTHANDLER=1"),
        "sigsegv",
    ),
    rank_fault(
        "somebody kills a rank",
        ("signal", str(int(signal.SIGKILL))),
        ("was killed by SIGKILL", "a user or the kernel killed it"),
        "sigkill",
    ),
    hang_fault(
        "a rank never comes to a collective",
        "collective",
        ("rank 0 waits in all_reduce for rank 1 on node2, which is in load_batch",),
    ),
    hang_fault("a rank stops reading its data", "pipe", ("read_shard",)),
    Fault(
        "a rank returns while the others go on",
        program_args("hanging.py", "leave", "1"),
        ("rank 1 on node2 had exited with 0 before", "take part in every collective"),
        cause="peer_left",
    ),
    Fault(
        "a host loses its power",
        (*program_args("faulty.py", "9", "none"), PLAIN_ENTRY),
        ("first failure: node2", "node2: could not verify that all processes ended"),
        code=4,
        during=power_off,
    ),
    Fault(
        "somebody kills torchrun",
        program_args("faulty.py", "9", "none"),
        ("first failure: ", "node2", "SIGKILL"),
        cause="sigkill",
        during=kill_torchrun,
    ),
    refused_launch(
        "fewer GPUs than the YAML says",
        ("cluster.nodes.node2.gpus=2",),
        ("node2: cluster.nodes.node2.gpus: asked for 2, the host has none", "legal here: 0"),
    ),
    check_fault(
        "a tiny shared memory",
        (),
        ("node2", "shared memory (/dev/shm) has 1 MiB free", "remount,size=16G"),
        on_host("mount -t tmpfs -o size=1M tmpfs /dev/shm", "umount /dev/shm"),
        code=0,
    ),
    check_fault(
        "a full folder for temporary files",
        ("cluster.setup=['export TMPDIR=/mnt']",),
        ("node2", "/mnt has 0 MiB free for temporary files", "task.env.TMPDIR"),
        on_host(
            "mount -t tmpfs -o size=16k,mode=1777 tmpfs /mnt; cat /dev/zero > /mnt/full || true",
            "umount /mnt",
        ),
        code=0,
    ),
)
"""What only `make test-all` tries."""
