"""A rank that writes numbered lines until `~/stop-NAME` is there; deaf children keep it company.

    chatter.py NAME SECONDS_BETWEEN_LINES [deaf]

One child has a session of its own and ignores TERM, one has no environment either.
"""

import os
import signal
import sys
import time

NAME, PAUSE = sys.argv[1], float(sys.argv[2])
RANK = os.environ["RANK"]
WIDE = b"x" * 150 + b"\n"
STOP = os.path.expanduser(f"~/stop-{NAME}")


def put(descriptor: int, number: int) -> None:
    line = f"{NAME} {RANK} {number} ".encode() + WIDE
    while line:
        line = line[os.write(descriptor, line) :]


def company(bare: bool) -> None:
    """Start a child that nobody finds by its session."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if bare:
        os.execve("/bin/sleep", ["sleep", "600"], {})  # noqa: S606
    if os.fork() == 0:  # and its parent is gone
        time.sleep(600)
    os._exit(0)


company(bare=False)
company(bare=True)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
count = 0
while not os.path.exists(STOP):
    put(1, count)
    if count % 7 == 0:
        put(2, count // 7)
    count += 1
    time.sleep(PAUSE)
