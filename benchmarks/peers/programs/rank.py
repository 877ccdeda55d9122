"""Rank of the comparison: `rank.py SCENE FOLDER WORLD_SIZE [LINES]`, without torch.

Whoever starts it tells it its rank by RANK, or by Open MPI's variable. Where it is to run for a
while, it holds a lock of the file FOLDER/up.RANK, together with a child that it may have.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOREVER_S = 900


def main(scene: str, folder: str, world_size: str, lines: str = "0") -> None:
    """Do what a scene asks of this rank."""
    rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    if scene == "first line":
        print("here", flush=True)
        time.sleep(0.5)
    elif scene == "lines":
        for number in range(int(lines)):
            sys.stdout.write(f"{rank} {number:08d} ".ljust(99, "x") + "\n")
    else:
        lock = os.open(Path(folder, f"starting.{rank}"), os.O_CREAT | os.O_WRONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if scene == "stubborn":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            subprocess.Popen(["sleep", str(FOREVER_S)], start_new_session=True, pass_fds=[lock])
        Path(folder, f"starting.{rank}").rename(Path(folder, f"up.{rank}"))
        fails = scene == "failure" and rank == int(world_size) - 1
        while fails and not Path(folder, "fail").exists():
            time.sleep(0.01)
        if fails:
            sys.exit(3)
        time.sleep(FOREVER_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
