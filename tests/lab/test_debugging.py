"""A rank under a debugger: `debug.rank`, and `breakpoint()` without it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.lab.dap import DebugClient
from tests.lab.lab import LOGIN_USER, Lab
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

TWO = ("cluster=lab", "task.script=prog.py", PLAIN_ENTRY, "cluster.nproc_per_node=1")


@contextmanager
def tunnel(lab: Lab, node: str, port: int) -> Iterator[socket.socket]:
    """A connection to a port of a host's loopback, by the user's own ssh."""
    ours, theirs = socket.socketpair()
    options = (f"UserKnownHostsFile={lab.known_hosts}", "IdentitiesOnly=yes", "BatchMode=yes")
    argv = ["ssh", "-F", "/dev/null", "-i", str(lab.key), "-W", f"127.0.0.1:{port}"]
    for option in options:
        argv += ["-o", option]
    with subprocess.Popen(
        [*argv, f"{LOGIN_USER}@{lab[node].address}"], stdin=theirs, stdout=theirs
    ) as ssh:
        theirs.close()
        with closing(ours):
            yield ours
        ssh.terminate()


def test_a_rank_waits_for_a_debugger(lab: Lab, on_lab: Launcher) -> None:
    """Which stops it at a line and changes a value there; the others run meanwhile."""
    (on_lab.folder / "prog.py").write_text(PROGRAM)
    wanted = (*TWO, "debug.rank=1", "watch.stall_s=1", "watch.action=stop", "grace_s=2")
    run = on_lab.start(*wanted, "--", "a b")
    run.until_printed("[node1:0] rank 0 x 41 ['a b'] False")
    run.until(lambda: "every rank started" in run.err, "the start of both")
    assert "note: rank 1 on node2 waits for a debugger: " in run.err
    assert "the hang watchdog is off" in run.err
    wait_until(lambda: LISTENING in lab["node2"].sh("cat /proc/net/tcp"), "the debugger")
    with tunnel(lab, "node2", 5678) as connection, closing(DebugClient(connection)) as client:
        client.attach(on_lab.folder, {"prog.py": [4]})
        stopped = client.event("stopped")
        assert "node2:1" not in run.out
        assert client.evaluate("(x, rank)", stopped["threadId"]) == "(41, 1)"
        client.evaluate("globals().update(x=42)", stopped["threadId"])
        client.request("continue", threadId=stopped["threadId"])
        done = run.wait()
    assert done.code == 0, done
    assert "[node2:1] rank 1 x 42 ['a b'] False" in done.out
    wait_until_idle(lab)


@pytest.mark.all
def test_what_keeps_a_rank_from_being_debugged(lab: Lab, on_lab: Launcher) -> None:
    """A rank that is not there, a port that is in use: before anything starts, by its key."""
    (on_lab.folder / "prog.py").write_text(PROGRAM)
    absent = on_lab(*TWO, "debug.rank=4")
    assert absent.code == 3
    assert "error: debug.rank: there is no rank 4: this run has 0 to 1" in absent.err
    listening = "import socket,time; s=socket.create_server(('127.0.0.1', 5678)); print(1, flush=1)"
    argv = [sys.executable, "-c", f"{listening}; time.sleep(600)"]
    with lab["node1"].popen(argv, stdout=subprocess.PIPE) as taken:
        assert taken.stdout
        taken.stdout.readline()
        in_use = on_lab(*TWO, "debug.rank=0")
        lab["node1"].kill_all()
    assert in_use.code == 3
    assert "error: node1: debug.port: port 5678 is in use on this host" in in_use.err


@pytest.mark.all
def test_a_breakpoint_without_a_debugger_names_it(on_lab: Launcher) -> None:
    """The first failure has the key as its cure."""
    (on_lab.folder / "prog.py").write_text("x = 41\nbreakpoint()\n")
    failed = on_lab(*TWO, "cluster.only=[node1]")
    assert failed.code == 1
    cure = " ".join(failed.err.partition("cure: ")[2].split())
    assert "debug.rank=R starts rank R under debugpy and waits for your editor" in cure
