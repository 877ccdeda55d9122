"""A stand-in for torchrun whose nodes come and go: by the files of a folder that all hosts see.

In $ELASTIC_FOLDER each agent makes `agents/NODE`; a test removes that of a node that is lost. The
first of those who are there writes `round_NUMBER`, who takes part in what order, whenever there
are others than before, and as many as `size` says. Each round starts all ranks anew.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.1
NODE = socket.gethostname()


def newest(folder: Path) -> tuple[int, list[str]]:
    number = max((int(path.name[6:]) for path in folder.glob("round_*")), default=0)
    return number, json.loads((folder / f"round_{number}").read_text()) if number else []


def lead(folder: Path) -> None:
    there = sorted(path.name for path in (folder / "agents").iterdir())
    number, names = newest(folder)
    enough = len(there) >= int((folder / "size").read_text())
    if enough and there != names and there[0] == NODE:
        aside = folder / f"next_{NODE}"
        aside.write_text(json.dumps(there))
        aside.rename(folder / f"round_{number + 1}")


def start(
    names: list[str], number: int, restarts: int, program: list[str]
) -> "subprocess.Popen[bytes]":
    told = {
        "RANK": names.index(NODE),
        "LOCAL_RANK": 0,
        "WORLD_SIZE": len(names),
        "GROUP_WORLD_SIZE": len(names),
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": restarts + 1,
        "MASTER_ADDR": names[0],
        "MASTER_PORT": 20000 + number,
    }
    env = {**os.environ, **{name: str(value) for name, value in told.items()}}
    return subprocess.Popen(program, env=env, start_new_session=True)


def stop(rank: "subprocess.Popen[bytes] | None") -> None:
    if rank and rank.poll() is None:
        os.killpg(rank.pid, signal.SIGTERM)
        rank.wait()


def main(max_restarts: int, program: list[str]) -> int:
    """Follow the rounds until a rank has succeeded; one that failed waits for the next round."""
    folder = Path(os.environ["ELASTIC_FOLDER"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    (folder / "agents" / NODE).touch()
    current = restarts = 0
    rank = None
    try:
        while restarts <= max_restarts:
            lead(folder)
            number, names = newest(folder)
            if number != current and NODE in names:
                stop(rank)
                rank = start(names, number, restarts, program)
                current = number
            if rank and rank.poll() == 0:
                return 0
            if rank and rank.poll():
                restarts += 1
                rank = None
            time.sleep(POLL_S)
        return 1
    finally:
        stop(rank)
