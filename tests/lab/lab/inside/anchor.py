"""PID 1 of a lab: holds its namespaces open until the process that made the lab is gone.

Usage: anchor.py PIDFD FOLDER

The kernel kills all that lives in a PID namespace once its PID 1 ends, and takes back the
namespaces, mounts and cables with it. So however the lab's maker dies, nothing is left behind.
"""

import select
import shutil
import signal
import sys
from pathlib import Path


def main() -> None:
    """Waits for the death of the process behind PIDFD, then removes FOLDER and ends."""
    maker, folder = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to PID 1: let none become zombies
    # /proc is still that of the maker's namespace, so this is the PID the maker knows us by.
    print(Path("/proc/self").readlink(), flush=True)
    poll = select.poll()
    poll.register(maker, select.POLLIN)
    poll.poll()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
