"""A rank that does something when it gets TERM.

saves=SECONDS  helper=PATH (a child that notes there that it got TERM)
"""

import os
import signal
import subprocess
import sys
import time


def did(name: str, value: str, rank: str) -> bool:
    if name == "saves":
        signal.signal(signal.SIGTERM, lambda *_: save(float(value)))
    elif name == "helper":
        argv = [sys.executable, rank, f"hears={value}", "err=ready", "sleep=600"]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE)
        child.stderr and child.stderr.readline()
    elif name == "hears":
        signal.signal(signal.SIGTERM, lambda *_: hear(value))
    else:
        return False
    return True


def save(seconds: float) -> None:
    print("saving", flush=True)
    time.sleep(seconds)
    print("saved", flush=True)
    sys.exit()


def hear(path: str) -> None:
    print("heard", flush=True)
    open(path.replace("RANK", os.environ["RANK"]), "w").close()
    sys.exit()
