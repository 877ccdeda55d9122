"""A host that lies: the Python that its agent is started with alters what the agent answers.

python liar.py NODE LIE PYTHON-ARGUMENTS; on other nodes than NODE it is Python itself.
"""

import socket
import subprocess
import sys
from os import execv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from runner.core.wire.codec import MAGIC, Frame, FrameDecoder

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
CHANGES = {
    b"hub_joined": (b'"node":"node2"', b'"node":"node1"'),
    b"program_started": (b'"run_id":"liars"', b'"run_id":"other"'),
    b"rank_started": (b'"rank":1', b'"rank":9'),
}


def escapes(frame: Frame) -> Frame:
    """Put what acts upon a terminal into every text about a run."""
    for run in frame.data.get("runs", ()):
        run["owner"] += ESCAPE
        for key in ("task", "launched_by"):
            run["info"][key] += ESCAPE
    if frame.kind == "exited":
        frame.data["error"] = f"odd{ESCAPE}"
    return frame


def others(frame: Frame) -> Frame:
    """Tell of another node's rank, of another run and of a rank that nobody has."""
    payload = b""
    for line in frame.payload.splitlines(keepends=True) if frame.kind == "events" else ():
        told = line
        for kind, (old, new) in CHANGES.items():  # of the same length: offsets count bytes
            told = told.replace(old, new) if b'"kind":"%s"' % kind in line else told
        payload += told
    return Frame(frame.kind, frame.data, payload or frame.payload)


def steals(frame: Frame) -> Frame:
    """Tell that its runs are those of node1, too."""
    listed = frame.data.get("runs", ())
    more = [{**run, "node": "node1", "alive": False, "state": "stopped"} for run in listed]
    return Frame(frame.kind, {**frame.data, "runs": [*listed, *more]}) if more else frame


LIES: Any = {"steals": steals, "escapes": escapes, "others": others}


def main(node: str, lie: str, *words: str) -> int:
    if socket.gethostname() != node:
        execv(sys.executable, [sys.executable, *words])  # noqa: S606
    out, decoder, banner = sys.stdout.buffer, FrameDecoder(), b""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, bufsize=0) as agent:
        assert agent.stdout
        while not banner.endswith(MAGIC):
            part = agent.stdout.read(1) or sys.exit("the agent did not start")
            out.write(part)
            out.flush()  # the boot line waits for an answer to what it says there
            banner += part
        while chunk := agent.stdout.read(1 << 16):
            for frame in decoder.feed(chunk):
                if told := LIES[lie](frame):
                    out.write(told.pack())
            out.flush()
    return agent.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
