"""Container entry: the first program in a container takes its environment, and becomes the command.

    PYTHON -I -S entry.py FOLDER PROGRAM [ARG...]

The environment is a line of JSON on the standard input: what is an option of an engine, all who may
use the engine can read. FOLDER is that of the attempt; the mark in it says that this began.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, List, NoReturn

MARK = "container.began"
_DEVICE = re.compile(r"nvidia\d+")


def main(argv: List[str]) -> NoReturn:
    """Become the program."""
    folder, *program = argv
    with open(0, "rb", closefd=False) as stream:
        line = stream.readline()
    if not line.endswith(b"\n"):
        _refuse("its environment did not arrive")
    given: Dict[str, Any] = json.loads(line)
    env = {**os.environ, **given["env"]}
    try:
        os.close(os.open(os.path.join(folder, MARK), os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        _refuse(f"cannot write in {folder} as user {os.getuid()}: {error.strerror}")
    devices = [name for name in os.listdir("/dev") if _DEVICE.fullmatch(name)]
    if len(devices) < given["devices"]:
        has = f"has {len(devices)} of the {given['devices']} GPUs that were asked for"
        _refuse(f"it {has}: is NVIDIA's container toolkit set up on this host?")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.chdir(given["cwd"])
    except OSError as error:
        _refuse(f"cannot enter {given['cwd']}: {error.strerror}")
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        _refuse(f"cannot start {program[0]}: {error.strerror}")


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"container: {reason}\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
