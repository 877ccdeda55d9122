"""A rank without torch that one fault befalls: faulty.py RANK FAULT [WORD]. The others wait."""

import atexit
import importlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time

RANK, FAULT, *WORDS = sys.argv[1:]
MASTER_PORT = int(os.environ["MASTER_PORT"])


def connected() -> socket.socket:
    while True:
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], MASTER_PORT))
        except OSError:
            time.sleep(0.1)


def leave_slowly(to_rank_0: socket.socket) -> None:
    """Be a process group that is taken down: the other rank sees that at once."""
    to_rank_0.close()
    time.sleep(600)


def notice() -> None:
    with socket.create_server(("", MASTER_PORT)) as server:
        server.accept()[0].recv(1)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


def train() -> None:
    print("epoch 1", flush=True)
    if FAULT == "raise_slowly":
        atexit.register(leave_slowly, connected())
        raise ValueError("lr must be positive")
    if FAULT == "error_file":  # as torch's @record writes it
        trace = 'Traceback (most recent call last):\n  File "t.py"\nValueError: told nobody but torchrun'
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"extraInfo": {"py_callstack": trace}}}, file)
        sys.exit(1)
    if FAULT == "memory":
        with open(f"{WORDS[0]}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        hoard = []
        while True:
            hoard.append(b"x" * (1 << 20))
    if FAULT == "module":
        sys.path.insert(0, "/dev/shm/fault")
        importlib.import_module(WORDS[0])
    if FAULT == "data":
        open(WORDS[0], "rb").close()
    if FAULT == "program":
        subprocess.run(WORDS, check=True)
    if FAULT == "disk":
        with open(WORDS[0], "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
    if FAULT == "locks":
        locks = [multiprocessing.Lock() for _ in range(10_000)]
        print(len(locks))


if os.environ["RANK"] == RANK or FAULT in ("module", "data"):
    train()
if FAULT == "raise_slowly" and os.environ["RANK"] == "0":
    notice()
time.sleep(600)
