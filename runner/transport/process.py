"""The local and openssh transports: a program on a machine is a child process of this one."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from runner.core import shell
from runner.core.errors import Problem
from runner.core.spec import Node, Ssh
from runner.core.wire import boot
from runner.transport.base import READ_SIZE, Ending
from runner.transport.endpoint import Endpoint, Kind, LoginFailed
from runner.transport.logins import Login, run_query

EXIT_TIMEOUT_S = 0.5
"""Time for a child to end by itself, and again after SIGTERM."""
KILL_TIMEOUT_S = 5.0
"""Time for the kernel to end a killed child: moments, unless the machine is overloaded."""
WITH_US = 'exec 3<&0; (read _ <&3; kill $$) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'
"""Starts a program that ends with its standard input, as that of a killed process does."""
OWN_FAULT = 255
"""The exit code of ssh where it is not that of the program."""


class ProcessChannel:
    """A Channel over the standard streams of a child in a session of its own.

    They are one socket, since a pipe that is closed does not wake a thread that waits for it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stderr: int | IO[bytes] = subprocess.STDOUT,
        explain: Callable[[int], Ending] = Ending.of_status,
        on_close: Callable[[], None] = lambda: None,
        environ: Mapping[str, str] | None = None,
        is_signalled: bool = True,
    ) -> None:
        """One that is not `is_signalled` ends by itself once its input is closed, or goes on."""
        self.ended: Ending | None = None
        self._explain = explain
        self._on_close = on_close
        self._is_signalled = is_signalled
        self._close_lock = threading.Lock()
        self._is_closed = False
        self.socket, far_end = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=far_end.fileno(),
                stdout=far_end.fileno(),
                stderr=stderr,
                env=environ,
                start_new_session=True,
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            far_end.close()
        limits = boot.inherited()  # the agent raises it for itself
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limits)

    def read(self) -> bytes:
        data = b""
        with contextlib.suppress(OSError):  # it left unread what was written
            data = self.socket.recv(READ_SIZE)
        if not data and self.ended is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_TIMEOUT_S)
            self.ended = Ending(None, "it closed its output")
            if self._process.returncode is not None:
                self.ended = self._explain(self._process.returncode)
        return data

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        """End the child: first its input, then itself and its process group."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.ended = self.ended or Ending(None, "it was closed here")
            with contextlib.suppress(OSError):  # paramiko has closed it
                self.socket.shutdown(socket.SHUT_RDWR)
            if self._is_signalled:
                end_process(self._process)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(EXIT_TIMEOUT_S)
            self.socket.close()
            self._on_close()


class LocalTransport:
    """This machine, and the connection to it: programs are started as they are."""

    def connect(self, _node: Node) -> LocalTransport:
        return self

    def start(self, words: Sequence[str]) -> ProcessChannel:
        try:
            return ProcessChannel(words)
        except OSError as error:
            message = f"no process can be started on this machine ({error.strerror})"
            raise LoginFailed(Kind.NO_SESSION, Problem("", message)) from None

    def close(self) -> None:
        """There is nothing that its programs share."""


class OpensshConnection(Login):
    """A login by the user's own client.

    It is an `ssh` that only serves other ones (ControlMaster): that of the user where he has one
    open, else ours.
    """

    def __init__(self, ssh: Ssh, endpoint: Endpoint, via: OpensshConnection | None = None) -> None:
        self._ssh = ssh
        self._endpoint = replace(endpoint, by_openssh=True)
        self._via = via
        self._timeout_s = ssh.connect_timeout
        self._lock = threading.Lock()
        # Below /tmp, because the path of a socket has to be short.
        self._folder = Path(tempfile.mkdtemp(prefix="runner-ssh-", dir="/tmp"))
        self._socket = ""
        self._login_said = self._folder / "login"
        self._said = self._folder / "program"
        self._master: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str]) -> ProcessChannel:
        # What is left on its standard error is ssh's own.
        merged = ["/bin/sh", "-c", 'exec 2>&1; exec "$@"', "sh", *words]
        argv = [*self.through(), f"exec {shell.line(merged)}"]

        def explain(code: int) -> Ending:
            if code != OWN_FAULT:
                return Ending.of_status(code)
            said = said_in(self._said)
            if self._master:  # it takes a moment to end, if it was lost
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._master.wait(EXIT_TIMEOUT_S)
            if not self._is_open():
                said += said_in(self._login_said)
                return Ending(None, f"the ssh connection was lost ({said[-1] if said else code})")
            if said and said[0].startswith("mux_client"):
                return Ending(None, f"no session was opened ({said[0]})")
            return Ending.of_status(code)

        with self._said.open("wb") as stderr:
            return ProcessChannel(argv, stderr=stderr, explain=explain, on_close=self.close)

    def close(self) -> None:
        """End it, but not that of the user."""
        if self._master:
            end_process(self._master)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_open(self) -> bool:
        if self._master:
            return self._master.poll() is None
        users = self._endpoint.first("controlpath")
        argv = ["ssh", "-O", "check", *self._endpoint.words]
        if not users or run_query(argv, self._ssh.connect_timeout)[0]:
            return False
        self._socket = users
        return True

    def _words(self, more: Mapping[str, str]) -> list[str]:
        """Return the words of a client with such options, and without the user's in the way."""
        is_strict = self._ssh.host_keys == "strict"
        options = {
            "BatchMode": "yes",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
            "StrictHostKeyChecking": "yes" if is_strict else "accept-new",
            "ConnectTimeout": f"{math.ceil(self._ssh.connect_timeout)}",
            "LogLevel": "INFO",
            **more,
        }
        if os.devnull in self._endpoint.first("userknownhostsfile").split():
            options["UserKnownHostsFile"] = self._endpoint.known_hosts_files[0]
        for name in ("ForkAfterAuthentication", "StdinNull", "ProxyUseFdpass"):
            if name.lower() in self._endpoint.settings:  # an older client does not know it
                options[name] = "no"
        words = ["ssh", "-T", "-a", "-x", "-S", self._socket]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return [*words, *self._endpoint.options, self._endpoint.name]

    def through(self) -> list[str]:
        """Return the words of a client that goes through this login."""
        options = {"ControlMaster": "no", "PermitLocalCommand": "no"}
        options["ProxyCommand"] = "false"  # without it, a client would log in by itself
        if "sessiontype" in self._endpoint.settings:
            options["SessionType"] = "default"
        return self._words(options)

    def _log_in(self) -> None:
        if self._master:  # what is left of a login that was lost
            end_process(self._master)
        self._socket = f"{self._folder}/s"
        options = {"ControlMaster": "yes", "ControlPersist": "no"}
        # Once logged in, it says so: `echo` is an empty line.
        options |= {"PermitLocalCommand": "yes", "LocalCommand": "echo"}
        if self._via:
            self._via.open()
            through = shell.line(self._via.through()).replace("%", "%%")
            options["ProxyCommand"] = f"{through} -W [%h]:%p"
        limit_s = 3 * self._ssh.connect_timeout
        with self._login_said.open("wb") as stderr:
            self._master = subprocess.Popen(
                ["/bin/sh", "-c", WITH_US, "sh", *self._words(options), "-N"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self._master.stdout  # noqa: S101 - for mypy
        with self._master.stdout as answer:
            poll = select.poll()
            poll.register(answer, select.POLLIN)
            has_answered = bool(poll.poll(1000 * limit_s))
            if has_answered and answer.read(1):
                return
        end_process(self._master)
        usual = "nothing, and ends" if has_answered else f"timed out after {limit_s:g} s"
        raise self._endpoint.by_words(said_in(self._login_said) or [usual], "as ssh says")


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()
    for signum in (0, signal.SIGTERM, signal.SIGKILL):
        timeout_s = KILL_TIMEOUT_S if signum == signal.SIGKILL else EXIT_TIMEOUT_S
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            return


def said_in(path: Path) -> list[str]:
    """Return the lines that a program wrote to a file; none where that is gone."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
