"""A host that lies: the Python that its agent is started with alters what the agent answers.

python liar.py NODE PYTHON-ARGUMENTS; on other nodes than NODE it is Python itself.
"""

import socket
import subprocess
import sys
from os import execv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from runner.core.wire.codec import MAGIC, Frame, FrameDecoder


def steals(frame: Frame) -> Frame:
    """Tell that its runs are those of node1, too."""
    listed = frame.data.get("runs", ())
    more = [{**run, "node": "node1", "alive": False, "state": "stopped"} for run in listed]
    return Frame(frame.kind, {**frame.data, "runs": [*listed, *more]}) if more else frame


def main(node: str, *words: str) -> int:
    if socket.gethostname() != node:
        execv(sys.executable, [sys.executable, *words])  # noqa: S606
    out = sys.stdout.buffer
    decoder = FrameDecoder()
    banner = b""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, bufsize=0) as agent:
        assert agent.stdout
        while not banner.endswith(MAGIC):
            part = agent.stdout.read(1) or sys.exit("the agent did not start")
            out.write(part)
            out.flush()  # the boot line waits for an answer to what it says there
            banner += part
        while chunk := agent.stdout.read(1 << 16):
            for frame in decoder.feed(chunk):
                out.write(steals(frame).pack())
            out.flush()
    return agent.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
