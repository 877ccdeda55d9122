"""A rank without torch that one fault befalls: faulty.py RANK FAULT [WORD]. The others wait."""

import argparse
import atexit
import ctypes
import importlib
import json
import os
import sys
import time

RANK, FAULT, *WORDS = sys.argv[1:]


def train() -> None:
    """Do what goes wrong."""
    print("epoch 1", flush=True)
    if FAULT == "raise_slowly":
        atexit.register(time.sleep, 600)  # as a process group that is taken down
    if FAULT in ("raise", "raise_slowly"):
        raise ValueError("lr must be positive")
    if FAULT == "chain":
        try:
            dict[str, float]()["lr"]
        except KeyError as error:
            raise RuntimeError("the configuration has no lr") from error
    elif FAULT == "error_file":  # as torch's @record writes it
        trace = 'Traceback (most recent call last):\n  File "t.py"\nValueError: told nobody but torchrun'
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"extraInfo": {"py_callstack": trace}}}, file)
        sys.exit(1)
    elif FAULT == "exit":
        sys.exit(int(WORDS[0]))
    elif FAULT == "signal":
        os.kill(os.getpid(), int(WORDS[0]))
    elif FAULT == "segfault":
        ctypes.string_at(0)
    elif FAULT == "memory":
        with open(f"{WORDS[0]}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 20))
    elif FAULT == "module":
        sys.path.insert(0, "/dev/shm/fault")
        importlib.import_module(WORDS[0])
    elif FAULT == "data":
        open(WORDS[0], "rb").close()
    elif FAULT == "full":
        with open("/dev/full", "w") as file:
            file.write("x" * 100_000)
    elif FAULT == "arguments":
        argparse.ArgumentParser(prog="train.py").parse_args(["--local-rank=0"])


if os.environ["RANK"] == RANK or FAULT in ("module", "data"):
    train()
if FAULT == "raise_slowly" and os.environ["RANK"] == "0":
    time.sleep(3)
    raise RuntimeError("pair.cc:553 Connection closed by peer")
time.sleep(600)
