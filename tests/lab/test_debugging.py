"""A rank under a debugger: `debug.rank`, and `breakpoint()` without it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from contextlib import closing

from tests.lab.dap import DebugClient
from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.test_forward import ports_of
from tests.lab.waiting import wait_until, wait_until_idle

PROGRAM = """\
import os, sys
x = 41
rank = int(os.environ["RANK"])
print("rank", rank, "x", x, sys.argv[1:], "RUNNER_DEBUG_RANK" in os.environ, flush=True)
"""
LISTENING = "0100007F:162E 00000000:0000 0A"
"""127.0.0.1:5678, as Linux writes it."""

TWO = ("cluster=lab", "cluster.only=[node1,node2]", "task.script=prog.py")


def test_a_rank_waits_for_a_debugger(lab: Lab, on_lab: Launcher) -> None:
    """It comes through `forward`, stops at a line, changes a value; the others run meanwhile."""
    (on_lab.folder / "prog.py").write_text(PROGRAM)
    wanted = (*TWO, "debug.rank=1", "cluster.nproc_per_node=1", "watch.stall_s=1")
    run = on_lab.start(*wanted, "watch.action=stop", "grace_s=2", "--", "a b")
    run.until_printed("[node1:0] rank 0 x 41 ['a b'] False")
    run.until(lambda: "every rank started" in run.err, "the start of both")
    told = f"forward --run {run.run_id} 5678` in another terminal"
    assert "note: rank 1 on node2 waits for a debugger: " in run.err
    assert told in run.err
    assert "the hang watchdog is off" in run.err

    forward = on_lab.start("forward", "--run", run.run_id, "0:5678")
    (port,) = ports_of(forward)
    assert f"forwarding 127.0.0.1:{port} to node2:5678;" in forward.out
    wait_until(lambda: LISTENING in lab["node2"].sh("cat /proc/net/tcp"), "the debugger")
    with closing(DebugClient(port)) as client:
        client.attach(on_lab.folder, {"prog.py": [4]})
        stopped = client.event("stopped")
        assert "node2:1" not in run.out
        assert client.evaluate("(x, rank)", stopped["threadId"]) == "(41, 1)"
        client.evaluate("globals().update(x=42)", stopped["threadId"])
        client.request("continue", threadId=stopped["threadId"])
        with contextlib.suppress(AssertionError):
            client.event("terminated")
    done = run.wait(60)
    assert done.code == 0, done
    assert "[node2:1] rank 1 x 42 ['a b'] False" in done.out
    assert "left running" not in done.err, done
    forward.send()
    forward.wait(15)
    wait_until_idle(lab)


def test_what_keeps_a_rank_from_being_debugged(lab: Lab, on_lab: Launcher) -> None:
    """A rank that is not there, a port that is in use: before anything starts, by its key."""
    (on_lab.folder / "prog.py").write_text(PROGRAM)
    absent = on_lab(*TWO, "cluster.nproc_per_node=2", "debug.rank=4")
    assert absent.code == 3
    assert "error: debug.rank: there is no rank 4: this run has 0 to 3" in absent.err
    listening = "import socket,time; s=socket.create_server(('127.0.0.1', 5678)); print(1, flush=1)"
    argv = [sys.executable, "-c", f"{listening}; time.sleep(60)"]
    with lab["node1"].popen(argv, stdout=subprocess.PIPE) as taken:
        assert taken.stdout
        taken.stdout.readline()
        in_use = on_lab(*TWO, "debug.rank=0")
        there = on_lab("check", *TWO[:2], TWO[2], "debug.rank=0")
        lab["node1"].kill_all()
    assert in_use.code == 3
    assert "error: node1: debug.port: port 5678 is in use on this host" in in_use.err
    assert "debug.port: port 5678 is in use" in there.out
    program = on_lab("cluster=lab", "task.command=hostname", "debug.rank=0")
    assert program.code == 2
    assert "debug.rank: debugpy starts Python programs" in program.err


def test_a_breakpoint_without_a_debugger_names_it(on_lab: Launcher) -> None:
    """The first failure has the key as its cure."""
    (on_lab.folder / "prog.py").write_text("x = 41\nbreakpoint()\n")
    failed = on_lab("cluster=lab", "cluster.only=[node1]", "task.script=prog.py")
    assert failed.code == 1
    cure = " ".join(failed.err.partition("cure: ")[2].split())
    assert "debug.rank=R starts rank R under debugpy and waits for your editor" in cure
