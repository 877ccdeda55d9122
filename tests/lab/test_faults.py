"""Faults of all kinds: the last lines name host and cause, and the exit code is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.faults import EVERYDAY, OTHERS, Fault, program_args
from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher

pytestmark = [pytest.mark.promise(8)]

LINES = 25
MEMORY = Path("/sys/fs/cgroup/memory")


def last_lines(text: str) -> str:
    """What a person sees at the end, its line breaks left out."""
    return re.sub(r"\s+", " ", " ".join(text.splitlines()[-LINES:]))


def with_addresses(lab: Lab, word: str) -> str:
    """A word in which `{node2}` and the like become addresses."""
    for name, host in lab.hosts.items():
        word = word.replace(f"{{{name}}}", host.address)
    return word


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.name) for fault in EVERYDAY),
        *(pytest.param(fault, id=fault.name, marks=pytest.mark.all) for fault in OTHERS),
    ],
)
def test_a_fault_is_named(lab: Lab, on_lab: Launcher, fault: Fault) -> None:
    """And nothing is left running; of a run, `why` says the same again."""
    with fault.setup(lab, on_lab):
        running = on_lab.start(*(with_addresses(lab, word) for word in fault.args))
        if fault.during:
            running.until(lambda: "every rank started" in running.err, "the ranks")
            fault.during(lab, running)
        done = running.wait()
        assert done.code == fault.code, done
        said = last_lines(done.err if running.run_id else done.out + done.err)
        for text in fault.expected_output:
            assert text in said, done
        if fault.args[0] != "check" and fault.code == 1:
            assert done.result["diagnosis"]["cause"] == fault.cause
            again = on_lab("why", "--cluster", "lab")
            assert again.code == 0, again
            assert again.out.strip() in done.err
    lab.repair()
    assert lab.wait_idle() == {}


def test_a_rank_that_the_kernel_kills(lab: Lab, on_lab: Launcher) -> None:
    """Out of memory in its cgroup: the verdict has the kernel's own line, which root may read."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no memory controller of version 1 here")
    name = f"runner-test-{on_lab.folder.parent.name[-20:]}"
    folder = MEMORY / name
    limit = f"mkdir {folder} && echo 48M > {folder}/memory.limit_in_bytes"
    lab["node2"].sh(limit, user="root")
    try:
        words = program_args("faulty.py", "1", "memory", str(folder))
        done = on_lab(*words, PLAIN_ENTRY, "cluster.ssh.user=root")
        assert done.code == 1, done
        said = last_lines(done.err)
        assert "first failure: rank 1 on node2 was killed by the kernel" in said, done
        assert "memory ran out on that host" in said
        assert done.result["diagnosis"]["cause"] == "memory"
    finally:
        lab["node2"].sh(f"rmdir {folder}", user="root", check=False)
