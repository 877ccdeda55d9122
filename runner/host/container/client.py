"""Container client: creates, starts and awaits the container of an order, and removes it.

    PYTHON -I -S client.py ORDER_FILE FOLDER

It stands where torchrun does without a container: its output is the container's, signals are
passed on, and it ends with the program's exit code. The engine is asked to pass them on: its own
client may leave at a TERM, and the container goes on. What the engine says of the end is read
before the removal. Whatever becomes of this process, the supervisor removes the container by its
name.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence

CREATE_TIMEOUT_S = 120.0
QUERY_TIMEOUT_S = 20.0
REMOVE_TIMEOUT_S = 60.0
NOT_STARTED = 125  # as docker and podman say it
MARK = "container.began"  # as in `entry`
HOME = "home"
BEFORE_START = ("created", "configured", "initialized")  # in the words of docker and podman
LOOK_AGAIN_S = 0.2
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
Json = Dict[str, Any]


class State(NamedTuple):
    """What an engine says of a container."""

    code: int
    out_of_memory: bool
    status: str
    error: str


class Client:
    """The container of one order."""

    def __init__(self, order: Json, folder: str) -> None:
        self._order = order
        self._container = order["container"]
        self._folder = folder
        secrets = self._container["secrets"]
        self._secrets = {name: os.environ.pop(name) for name in secrets if name in os.environ}
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._signal = 0  # the first that came before the start
        self._is_told = False  # whether another came later

    def run(self) -> int:
        """Return the exit code of the program."""
        for signum in SIGNALS:
            signal.signal(signum, self._forward)
        with contextlib.suppress(OSError):
            os.makedirs(self._container["given"].get("HOME") or HOME, mode=0o700, exist_ok=True)
        # A mark, or a container of this name, is that of a node which was lost and has come back.
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, MARK))
        if not self._container["create"]:
            return self._start()
        remove = (*self._container["remove"], self._container["name"])
        _run(remove, REMOVE_TIMEOUT_S)
        created = _run(self._container["create"], CREATE_TIMEOUT_S)
        if created.returncode:
            self._say(_last_line(created.stderr) or "the container could not be created")
            return NOT_STARTED
        code = 128 + self._signal if self._signal else self._start()
        state = self._inspect()
        while self._is_told and state is not None and state.status == "running":
            time.sleep(LOOK_AGAIN_S)
            state = self._inspect()
        if state is None:
            self._say("its daemon does not answer any more")
            return code or NOT_STARTED
        self._report(state)
        if state.status == "running":  # whoever waited for it was killed
            _run((*self._container["kill"], self._container["name"]), QUERY_TIMEOUT_S)
            state = state._replace(code=code or NOT_STARTED)
        _run(remove, REMOVE_TIMEOUT_S)
        # An entry point that ends without the program is no success.
        began = os.path.exists(os.path.join(self._folder, MARK))
        return state.code if began else code or NOT_STARTED

    def _start(self) -> int:
        """Start it, hand over its environment, and wait for its end."""
        # In a session of its own: it would get a signal for our group a second time.
        process = self._process = subprocess.Popen(
            self._container["start"], stdin=subprocess.PIPE, start_new_session=True
        )
        if self._signal:
            self._forward(self._signal, None)
        given = {
            "env": {**self._container["given"], **self._secrets},
            "cwd": self._order["cwd"],
            "devices": self._container["devices"],
        }
        assert process.stdin is not None  # noqa: S101 (for mypy)
        with contextlib.suppress(OSError):  # it has ended; its code says why
            process.stdin.write(json.dumps(given).encode() + b"\n")
            process.stdin.close()
        code = process.wait()
        return 128 - code if code < 0 else code

    def _inspect(self) -> Optional[State]:
        answer = _run(self._container["inspect"], QUERY_TIMEOUT_S)
        words = answer.stdout.decode(errors="replace").strip().split(" ", 3)
        if answer.returncode or len(words) < 3 or not words[0].lstrip("-").isdigit():
            return None
        return State(int(words[0]), words[1] == "true", words[2], " ".join(words[3:]))

    def _report(self, state: State) -> None:
        if state.out_of_memory:
            self._say("a process in the container was killed: its memory limit was reached")
        if state.error and not os.path.exists(os.path.join(self._folder, MARK)):
            self._say(state.error)

    def _forward(self, signum: int, _: object) -> None:
        if self._process is None:
            self._signal = self._signal or signum
            return
        self._is_told = True
        if not self._container["create"]:
            self._process.send_signal(signum)
            return
        kill = (*self._container["kill"], "--signal", str(int(signum)), self._container["name"])
        while _run(kill, QUERY_TIMEOUT_S).returncode:
            state = self._inspect()
            if state is None or state.status not in BEFORE_START:
                return
            time.sleep(LOOK_AGAIN_S)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self._container['engine']}: {text}\n")
        sys.stderr.flush()


def _run(argv: Sequence[str], limit_s: float) -> "subprocess.CompletedProcess[bytes]":
    """Run a command of the engine; a failure to do so has the exit code 124 or 127."""
    null = subprocess.DEVNULL
    pipe = subprocess.PIPE
    try:
        return subprocess.run(
            argv, stdin=null, stdout=pipe, stderr=pipe, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"{argv[0]} {argv[1]}: no answer within {limit_s:g} s"
        return subprocess.CompletedProcess(argv, 124, b"", text.encode())
    except OSError as error:
        text = f"{argv[0]}: {error.strerror}"
        return subprocess.CompletedProcess(argv, 127, b"", text.encode())


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def main(argv: List[str]) -> NoReturn:
    """Run the container of an order to its end."""
    order_file, folder = argv
    with open(order_file, encoding="utf-8") as file:
        order = json.load(file)
    code = Client(order, folder).run()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
