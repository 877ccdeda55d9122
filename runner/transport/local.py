"""This machine: a channel is the pipes of a child process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable

from runner.core.errors import NotReady, Problem
from runner.core.model.spec import Node
from runner.transport.base import Channel

READ_SIZE = 1 << 16
END_S = 0.5
"""How long a child may take to end by itself, and again after SIGTERM."""
KILLED_S = 5.0
"""How long the kernel may take to end a killed one: moments, unless the machine is overloaded."""


class LocalTransport:
    """Opens channels to child processes of this one."""

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []
        self._lock = threading.Lock()

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line here and return its streams; raise NotReady."""
        try:
            channel = LocalChannel(command)
        except OSError as error:
            problem = Problem(node.name, f"no process can be started here ({error.strerror})")
            raise NotReady([problem]) from None
        with self._lock:
            self._channels.append(channel)
        return channel

    def close(self) -> None:
        """End every child process."""
        with self._lock:
            channels, self._channels = self._channels, []
        closers = [threading.Thread(target=channel.close) for channel in channels]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


class LocalChannel:
    """A Channel over the pipes of a shell in a session of its own.

    Closing a pipe does not wake a thread that waits on it: both wait on a third pipe as well.
    """

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin  # noqa: S101 - for mypy
        assert self._process.stdout  # noqa: S101 - for mypy
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._asleep, self._wake = os.pipe()
        self._closing = threading.Event()
        self._reading, self._writing, self._ending = (threading.Lock() for _ in range(3))

    def recv(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        with self._reading:
            if not self._wait(self._stdout.fileno, select.POLLIN):
                return b""
            return os.read(self._stdout.fileno(), READ_SIZE)

    def send(self, data: bytes) -> None:
        """Hand on all of `data`; raise OSError when the other side is gone."""
        left = memoryview(data)
        with self._writing:
            while left:
                if not self._wait(self._stdin.fileno, select.POLLOUT):
                    raise BrokenPipeError("the channel is closed")
                with contextlib.suppress(BlockingIOError):  # room, but not for as much
                    left = left[os.write(self._stdin.fileno(), left) :]

    def close(self) -> None:
        """End the child: first its input, then itself and its process group."""
        with self._ending:
            if self._closing.is_set():
                return
            self._closing.set()
            os.write(self._wake, b"!")
            with self._reading, self._writing:
                for stream in (self._stdin, self._stdout):
                    stream.close()
                os.close(self._wake)
                os.close(self._asleep)
            self._end()

    def _wait(self, fileno: Callable[[], int], event: int) -> bool:
        """Wait until a pipe is ready; False if the channel was closed instead."""
        if self._closing.is_set():
            return False
        poll = select.poll()
        poll.register(fileno(), event)
        poll.register(self._asleep, select.POLLIN)
        poll.poll()
        return not self._closing.is_set()

    def _end(self) -> None:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S if number is signal.SIGKILL else END_S)
                return
