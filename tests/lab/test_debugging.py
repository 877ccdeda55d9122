"""A rank under a debugger: `debug.rank`."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.lab.dap import DebugClient
from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher
from tests.lab.waiting import wait_until, wait_until_idle

PROGRAM = """\
import os, sys
x = 41
rank = int(os.environ["RANK"])
print("rank", rank, "x", x, sys.argv[1:], "RUNNER_DEBUG_RANK" in os.environ, flush=True)
"""
LISTENING = "0100007F:162E 00000000:0000 0A"
"""127.0.0.1:5678, as Linux writes it."""


@contextmanager
def tunnel(said: str) -> Iterator[socket.socket]:
    """A connection to the debugger by the ssh line of a launch, without a port here."""
    ours, theirs = socket.socketpair()
    (line,) = re.findall(r"`ssh -N -L 5678:127.0.0.1:5678 (.+?)` in another terminal", said)
    command = f"exec ssh -W 127.0.0.1:5678 -o BatchMode=yes {line}"
    words = ["sh", "-c", command]
    with subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno()) as ssh:
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            ssh.terminate()


def test_a_rank_waits_for_a_debugger(lab: Lab, on_lab: Launcher) -> None:
    """Which stops it at a line and changes a value there; the others run meanwhile."""
    (on_lab.folder / "prog.py").write_text(PROGRAM)
    wanted = ("debug.rank=1", "watch.stall_s=1", "watch.action=stop", "grace_s=2")
    run = on_lab.start("cluster=lab", "task.script=prog.py", PLAIN_ENTRY, *wanted, "--", "a b")
    run.until_printed("[node1:0] rank 0 x 41 ['a b'] False")
    run.until(lambda: "every rank started" in run.err, "the start of both")
    assert "note: rank 1 on node2 waits for a debugger: " in run.err
    assert "the hang watchdog is off" in run.err
    wait_until(lambda: LISTENING in lab["node2"].sh("cat /proc/net/tcp"), "the debugger")
    with tunnel(run.err) as connection, closing(DebugClient(connection)) as client:
        client.attach(on_lab.folder, {"prog.py": [4]})
        stopped = client.event("stopped")
        assert "node2:1" not in run.out
        assert client.evaluate("(x, rank)", stopped["threadId"]) == "(41, 1)"
        client.evaluate("globals().update(x=42)", stopped["threadId"])
        client.request("continue", threadId=stopped["threadId"])
        done = run.wait()
    assert done.code == 0, done
    assert "[node2:1] rank 1 x 42 ['a b'] False" in done.out
    assert "left running" not in done.err
    wait_until_idle(lab)
