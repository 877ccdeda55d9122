"""A rank under a debugger: `debug.rank`."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher
from tests.lab.waiting import PATIENCE, wait_until, wait_until_idle

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


class DebugClient:
    """A client of the Debug Adapter Protocol, as an editor is one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(60 * PATIENCE)
        self._stream = connection.makefile("rwb")
        self._received: list[dict[str, Any]] = []
        self._sent = 0

    def send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command}
        body = json.dumps({**message, "arguments": arguments}).encode()
        self._stream.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._stream.flush()
        return self._sent

    def receive(self, key: str, value: object) -> dict[str, Any]:
        """Return the body of the message in which `key` is that."""
        while not (found := [each for each in self._received if each.get(key) == value]):
            head = self._stream.readline() + self._stream.readline()
            assert head, "the debugger has left"
            self._received.append(json.loads(self._stream.read(int(head.split()[1]))))
        assert found[0].get("success", True), found
        return dict(found[0].get("body") or {})

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.receive("request_seq", self.send(command, **arguments))


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
    with tunnel(run.err) as connection:
        client = DebugClient(connection)
        client.request("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
        mapping = {"localRoot": str(on_lab.folder), "remoteRoot": "."}
        client.send("attach", justMyCode=False, pathMappings=[mapping])
        client.receive("event", "initialized")
        source = {"path": str(on_lab.folder / "prog.py")}
        client.request("setBreakpoints", source=source, breakpoints=[{"line": 4}])
        client.request("configurationDone")
        thread = client.receive("event", "stopped")["threadId"]
        assert "node2:1" not in run.out
        frame = client.request("stackTrace", threadId=thread)["stackFrames"][0]["id"]
        found = client.request("evaluate", expression="(x, rank)", frameId=frame)
        assert found["result"] == "(41, 1)"
        client.request("evaluate", expression="globals().update(x=42)", frameId=frame)
        client.request("continue", threadId=thread)
        done = run.wait()
    assert done.code == 0, done
    assert "[node2:1] rank 1 x 42 ['a b'] False" in done.out
    assert "left running" not in done.err
    wait_until_idle(lab)
