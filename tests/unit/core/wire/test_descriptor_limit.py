"""The limit of open descriptors, in a process that has a low soft one."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from tests.lab.waiting import PATIENCE

SOFT, MANY = 64, 1100
PROGRAM = f"""
import json, os
from runner.core.wire import boot
from runner.core.spec import Node
from runner.host.process.bounded_child import BoundedChild, wait_all
from runner.transport.process import LocalTransport

boot.raise_to_hard()
boot.raise_to_hard()
files = [os.open(os.devnull, os.O_RDONLY) for _ in range({MANY})]
child = BoundedChild(lambda: os.execlp("sh", "sh", "-c", "ulimit -S -n; ulimit -H -n"), 30.0)
lowest = min(child.pipes)
for _ in wait_all([child]):
    pass
connection = LocalTransport().connect(Node("a", "localhost"))
channel = connection.start(["sh", "-c", "read go; ulimit -S -n; ulimit -H -n"])
channel.write(b"go\\n")
local = b"".join(iter(channel.read, b""))
print(json.dumps([lowest, child.text.split(), local.decode().split()]))
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY + 100, reason="the hard limit is low"
)
def test_soft_limit_is_raised_for_us_alone() -> None:
    """Descriptors beyond 1024 are waited for (not by select), and a program sees the old limit."""
    argv = ["sh", "-c", f'ulimit -S -n {SOFT}; exec "$@"', "sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    lowest, child, local = json.loads(done.stdout)

    hard = str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert lowest >= 1024
    assert child == local == [str(SOFT), hard]
