"""Commands of processes, read from trees of files that look like /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.process import procfs
from tests.unit.host.facts.test_machine import tree


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/usr/bin/python3\0-u\0train.py\0--token\0s3cret\0", "python3 -u train.py"),
        ("python\0-m\0torch.distributed.run\0--nnodes=2\0", "python -m torch.distributed.run"),
        ("/usr/bin/curl\0-s\0-H\0Authorization: s3cret\0http://x\0", "curl"),
        ("mc\0https://me:s3cret@store\0", "mc"),
    ],
)
def test_a_command_is_shown_without_its_arguments(tmp_path: Path, line: str, shown: str) -> None:
    """Program and script say who it is; any other word may be a secret."""
    root = tree(tmp_path, {"proc/5/cmdline": line})

    assert procfs.process_command(5, root) == shown


def test_a_kernel_thread_is_shown_by_its_name(tmp_path: Path) -> None:
    """A process without a command line has at least a name."""
    root = tree(tmp_path, {"proc/5/cmdline": "", "proc/5/comm": "nv_queue\n"})

    assert procfs.process_command(5, root) == "nv_queue"
