"""Fork server of controllers: `python -m runner` as a process, without the time of its imports.

A controller is forked from a process that has imported what `python -m runner` imports. It has its
own session, descriptors, environment and working directory, and ends like any interpreter; only the
time of the imports is saved.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUNNER_ARGV = [sys.executable, "-m", "runner"]
"""What a command line begins with for which a fork will do."""

ROOT = str(Path(__file__).parents[2])
PID_BYTES = 8
MAX_REQUEST = 1 << 20
SKIPPED = ("runner.host", "runner.tasks", "runner.fab", "runner.__main__")
USED_LATER = [
    "antlr4",
    "fabric",
    "paramiko",
    "ClusterShell.NodeSet",
    "rich.live",
    "rich.table",
    "omegaconf.grammar_parser",
    "hydra.core.plugins",
    "hydra.core.override_parser.overrides_parser",
    "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.core_plugins.basic_sweeper",
    "hydra._internal.core_plugins.file_config_source",
    "hydra._internal.core_plugins.importlib_resources_config_source",
]


class ForkedController:
    """A controller as `subprocess.Popen` would present it, forked by the server."""

    def __init__(self, connection: socket.socket, pid: int, argv: list[str]) -> None:
        self._connection = connection
        self._argv = argv
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended, or raise `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._argv, timeout or 0)
            self.returncode = int(self._connection.makefile("r").readline())
            self._connection.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_controller(
    argv: list[str], cwd: Path, env: Mapping[str, str], output: tuple[int, int]
) -> ForkedController:
    """Start `python -m runner ARGV` with these descriptors as its standard output and error."""
    connection, other_end = socket.socketpair()
    request = json.dumps({"argv": argv, "cwd": str(cwd), "env": dict(env)}).encode()
    with other_end, Path(os.devnull).open("rb") as nothing:
        fds = [nothing.fileno(), *output, other_end.fileno()]
        socket.send_fds(_server(), [request], fds)
    pid = int.from_bytes(connection.recv(PID_BYTES, socket.MSG_WAITALL), "big")
    return ForkedController(connection, pid, argv)


@functools.cache
def _server() -> socket.socket:
    """Start the server; it ends when this process is gone."""
    requests, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    argv = [sys.executable, __file__]
    with other_end:
        server = subprocess.Popen(
            argv, env={**env, "PYTHONPATH": ROOT}, stdin=other_end.fileno(), start_new_session=True
        )
    atexit.register(server.wait)
    atexit.register(requests.close)
    return requests


def _serve() -> dict[str, Any] | None:
    """Fork on request; return the request in the child that carries it out, None at the end."""
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers become no zombies
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 4)
        if not data:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.detach()  # its number is the controller's standard input from now on
            _keep(fds)
            request: dict[str, Any] = json.loads(data)
            return request
        for fd in fds:
            os.close(fd)


def _keep(fds: list[int]) -> None:
    """Fork a controller, and tell of its end; only the controller returns."""
    *streams, connection_fd = fds
    connection = socket.socket(fileno=connection_fd)
    pid = os.fork()
    if pid:
        for fd in streams:
            os.close(fd)
        connection.sendall(pid.to_bytes(PID_BYTES, "big"))
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.setsid()
    connection.close()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)


def _import_runner() -> None:
    """Import what controllers use, and make what they make once."""
    runner = importlib.import_module("runner")
    for module in pkgutil.walk_packages(runner.__path__, "runner."):
        if not module.name.startswith(SKIPPED):
            importlib.import_module(module.name)
    for name in USED_LATER:
        importlib.import_module(name)
    bootstrap = importlib.import_module("runner.control.rpc.bootstrap")
    bootstrap.boot_line()
    bootstrap.archive_for(bootstrap.KEY)
    gc.collect()
    gc.freeze()  # or every child would copy the pages of its first collection


def _become_controller(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    errors = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)
    sys.argv[1:] = argv
    sys.orig_argv[:] = ["python", "-m", "runner", *argv]
    sys.path[0] = cwd
    runpy.run_module("runner", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import_runner()
    if request := _serve():
        _become_controller(**request)
