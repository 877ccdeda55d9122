"""The local transport: a channel is the pipes of a child process on this machine."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from runner.core import descriptor_limit
from runner.core.errors import NotReady, Problem
from runner.core.spec import Node
from runner.transport.base import Channel

READ_SIZE = 1 << 16
EXIT_TIMEOUT_S = 0.5
"""Time for a child to end by itself, and again after SIGTERM."""
KILL_TIMEOUT_S = 5.0
"""Time for the kernel to end a killed child: moments, unless the machine is overloaded."""


class LocalTransport:
    """Opens channels to child processes."""

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []
        self._lock = threading.Lock()

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line on this machine and return its streams; raise NotReady."""
        try:
            channel = self._start(node, command)
        except OSError as error:
            message = f"no process can be started on this machine ({error.strerror})"
            raise NotReady([Problem(node.name, message)]) from None
        with self._lock:
            self._channels.append(channel)
        return channel

    def _start(self, node: Node, command: str) -> LocalChannel:
        del node
        return LocalChannel(["/bin/sh", "-c", command])

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
    """A Channel over the pipes of a child in a session of its own.

    Closing a pipe does not wake a thread that waits for it, so threads wait for a third one, too.
    """

    stderr: int | None = subprocess.STDOUT

    def __init__(self, words: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=environ,
            start_new_session=True,
            bufsize=0,
        )
        limits = descriptor_limit.inherited()  # the agent raises it for itself
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limits)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout  # noqa: S101, PT018 - for mypy
        self._stdin, self._stdout = stdin, stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._wake_read, self._wake_write = os.pipe()
        self._closing = threading.Event()
        self._read_lock, self._write_lock, self._close_lock = (threading.Lock() for _ in range(3))

    def recv(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        with self._read_lock:
            if not self._wait_ready(self._stdout.fileno, select.POLLIN):
                return b""
            return os.read(self._stdout.fileno(), READ_SIZE)

    def send(self, data: bytes) -> None:
        """Pass on all of `data`; raise OSError when the other side is gone."""
        remaining = memoryview(data)
        with self._write_lock:
            while remaining:
                if not self._wait_ready(self._stdin.fileno, select.POLLOUT):
                    raise BrokenPipeError("the channel is closed")
                with contextlib.suppress(BlockingIOError):  # there is room, but for less
                    remaining = remaining[os.write(self._stdin.fileno(), remaining) :]

    def close(self) -> None:
        """End the child: first its input, then itself and its process group."""
        with self._close_lock:
            if self._closing.is_set():
                return
            self._closing.set()
            os.write(self._wake_write, b"!")
            with self._read_lock, self._write_lock:
                for stream in (self._stdin, self._stdout):
                    stream.close()
                os.close(self._wake_write)
                os.close(self._wake_read)
            self._terminate()

    def abandon(self) -> None:
        """End the child: there is no connection."""
        self.close()

    def _wait_ready(self, fileno: Callable[[], int], event: int) -> bool:
        """Wait until a pipe is ready; False if the channel was closed instead."""
        if self._closing.is_set():
            return False
        poll = select.poll()
        poll.register(fileno(), event)
        poll.register(self._wake_read, select.POLLIN)
        poll.poll()
        return not self._closing.is_set()

    def _terminate(self) -> None:
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            if signum:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S if signum is signal.SIGKILL else EXIT_TIMEOUT_S)
                return
