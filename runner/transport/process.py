"""The local and openssh transports: a program on a machine is a child process of this one."""

from __future__ import annotations

import contextlib
import itertools
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
from pathlib import Path
from typing import IO

from runner.core import shell
from runner.core.errors import Problem
from runner.core.spec import Node, Ssh
from runner.core.wire import boot
from runner.transport.base import READ_SIZE, Ending
from runner.transport.endpoint import Endpoint
from runner.transport.failures import Failures, Kind, LoginFailed
from runner.transport.logins import Gate, SshTransport
from runner.transport.ssh_config import run_query

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
        """Return the next bytes, b"" at the end."""
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
        """Pass on all of `data`; raise OSError when the other side is gone."""
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
        """Return what starts programs here."""
        return self

    def start(self, words: Sequence[str]) -> ProcessChannel:
        """Start a program."""
        try:
            return ProcessChannel(words)
        except OSError as error:
            message = f"no process can be started on this machine ({error.strerror})"
            raise LoginFailed(Kind.NO_SESSION, Problem("", message)) from None

    def close(self) -> None:
        """There is nothing that its programs share."""


class OpensshTransport(SshTransport):
    """Logs in by the user's own client.

    Each login is an `ssh` that only serves other ones (ControlMaster): that of the user where he
    has one open, else ours.
    """

    def __init__(self, ssh: Ssh) -> None:
        # Below /tmp, because the path of a socket has to be short.
        self._folder = tempfile.mkdtemp(prefix="runner-ssh-", dir="/tmp")
        numbers = itertools.count(1)

        def make(node: str, endpoint: Endpoint, via: OpensshConnection | None) -> OpensshConnection:
            return OpensshConnection(ssh, node, endpoint, via, f"{self._folder}/{next(numbers)}")

        super().__init__(ssh, make)

    def close(self) -> None:
        """End the logins at jump hosts."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


class OpensshConnection:
    """A login by the user's own client."""

    def __init__(
        self, ssh: Ssh, node: str, endpoint: Endpoint, via: OpensshConnection | None, path: str
    ) -> None:
        self._ssh = ssh
        self._endpoint = endpoint
        self._via = via
        self._own_path = path
        self._path = path
        self._failures = Failures(node, endpoint, is_own=True)
        self._gate = Gate(ssh.connect_timeout, is_shared=endpoint.is_jump)
        self._master: subprocess.Popen[bytes] | None = None
        self._login_said = Path(f"{path}.login")
        self._said = Path(f"{path}.program")

    def open(self) -> None:
        """Log in if that is not done; raise LoginFailed."""
        self._gate.log_in(self._log_in, unless=self._is_open)

    def start(self, words: Sequence[str]) -> ProcessChannel:
        """Start a program."""
        # What is left on its standard error is ssh's own.
        merged = ["/bin/sh", "-c", 'exec 2>&1; exec "$@"', "sh", *words]
        argv = [*self.through(), f"exec {shell.line(merged)}"]

        def explain(code: int) -> Ending:
            said = said_in(self._said)
            if code == OWN_FAULT and not self._is_open_after(EXIT_TIMEOUT_S):
                said += said_in(self._login_said)
                return Ending(None, f"the ssh connection was lost ({said[-1] if said else code})")
            if code == OWN_FAULT and said and said[0].startswith("mux_client"):
                return Ending(None, f"no session was opened ({said[0]})")
            return Ending.of_status(code)

        with self._said.open("wb") as stderr:
            return ProcessChannel(argv, stderr=stderr, explain=explain, on_close=self.close)

    def close(self) -> None:
        """End it, but not that of the user."""
        if self._master:
            end_process(self._master)

    def _is_open_after(self, seconds: float) -> bool:
        """Return whether a login is open, after some time for ours to end if it was lost."""
        if self._master:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.wait(seconds)
        return self._is_open()

    def _is_open(self) -> bool:
        """Return whether a login is open: ours, or else one of the user's own."""
        if self._master:
            return self._master.poll() is None
        users = self._endpoint.first("controlpath")
        argv = ["ssh", "-O", "check", *self._endpoint.words]
        if not users or run_query(argv, self._ssh.connect_timeout)[0]:
            return False
        self._path = users
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
        words = ["ssh", "-T", "-a", "-x", "-S", self._path]
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
        self.close()  # what is left of a login that was lost
        self._path = self._own_path
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
        raise self._failures.by_words(said_in(self._login_said) or [usual], "as ssh says")


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a child: its input, then itself and its process group."""
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
