"""Fork server: imports torch once for a host; it becomes torchrun, and a fork of it serves ranks.

torchrun imports torch in any case. Then a fork of it imports what else ranks need, while torchrun
looks for the other nodes. Nothing is computed and no thread is started there, so that its forks are
what an exec'd rank would be after its own imports. Where that cannot be made sure of, ranks are
executed by their shims, which say why. It is the standard library until the imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Set

from . import fork_safety, forked_rank

SERVER_VARIABLE = "RUNNER_FORK_SERVER"
"""Has the name of the server's abstract socket, for shims alone."""

CPP_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
LEVELS = {"INFO": 0, "WARNING": 1, "ERROR": 2, "FATAL": 3}
SHIM_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
)
"""What shims pass on to ranks; the server is in the process group of torchrun and survives them."""
LAUNCHER_MODULES = ("torch", "torch.distributed.run")
REQUEST_TIMEOUT_S = 3.0
END_TIMEOUT_S = 3.0


def main(argv: Sequence[str]) -> forked_rank.Start:
    """Import torch, fork, and be torchrun; in a forked rank, return how its program starts."""
    modules, hide, program, launcher, *args = argv
    path = list(sys.path)
    hidden = {name: os.environ.pop(name) for name in hide.split(",") if name in os.environ}
    visible = dict(os.environ)
    reads: Dict[str, Set[str]] = {"torch": set()}
    with forked_rank.recorded(reads["torch"]):
        for name in LAUNCHER_MODULES:
            importlib.import_module(name)
    address = b"\0runner-" + os.urandom(16).hex().encode()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(128)
    is_over, end = os.pipe()
    launcher_pid = os.getpid()
    pid = fork_safety.fork()
    if pid == 0:
        os.close(end)
        signal.pthread_sigmask(signal.SIG_BLOCK, SHIM_SIGNALS)
        forked_rank.die_with_parent(launcher_pid)  # as long as there are no ranks
        names = list(dict.fromkeys([*LAUNCHER_MODULES[:1], *filter(None, modules.split(","))]))
        reason = find_refusal(names, program, listener, reads)
        added = {k: value for k, value in os.environ.items() if visible.get(k) != value}
        preloaded = forked_rank.Preloaded(names, visible, added, path, reads)
        request = ForkServer(listener, is_over, preloaded, reason).serve()
        return forked_rank.start_of(request, preloaded)
    for unused in (listener.detach(), is_over):
        os.close(unused)
    atexit.register(_end_server, end, pid)
    os.environ.update({**hidden, SERVER_VARIABLE: address[1:].decode()})
    set_cpp_log_level(hidden.get(CPP_LOG_LEVEL, ""))
    # What `python -P -m NAME ARG...` does.
    module = importlib.import_module(launcher)
    forked_rank.set_title([sys.executable, "-m", launcher, *args])
    sys.argv[:] = [str(module.__file__), *args]
    module.main()
    sys.exit()


def find_refusal(
    names: Sequence[str], program: str, listener: socket.socket, reads: Dict[str, Set[str]]
) -> str:
    """Import the modules; return why ranks cannot be forked after that, "" if they can.

    `reads` gets the variables that the import of each has read.
    """
    try:
        fork_safety.check_backends()
        fork_safety.check_program(program)
        for name in names:
            try:
                with forked_rank.recorded(reads.setdefault(name, set())):
                    importlib.import_module(name)
            except (Exception, SystemExit) as error:
                why = f"{name} cannot be imported ({type(error).__name__}: {error})"
                raise fork_safety.ForkRefusal(why) from error
        fork_safety.check_threads()
        fork_safety.check_descriptors({0, 1, 2, listener.fileno()})
        fork_safety.check_fork()
    except fork_safety.ForkRefusal as reason:
        return str(reason)
    except Exception as error:  # noqa: BLE001 (ranks are executed, whatever it is)
        return f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # the collector must not write to, and thereby copy, what is shared
    return ""


def _end_server(end: int, pid: int) -> None:
    """Wait for the server, which ends by itself after torchrun and all ranks."""
    os.close(end)
    fork_safety.reap(pid, END_TIMEOUT_S)


def set_cpp_log_level(level: str) -> None:
    """Set what torch's C++ code read from TORCH_CPP_LOG_LEVEL while it was imported: torchrun's."""
    if level not in LEVELS:
        return
    libraries = os.path.join(os.path.dirname(str(sys.modules["torch"].__file__)), "lib")
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(os.path.join(libraries, "libc10.so"))
        ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level").value = LEVELS[level]


class _Rank(NamedTuple):
    """A forked rank, until its end was told to its shim."""

    pid: int
    shim: socket.socket


class ForkServer:
    """Forks ranks for their shims, tells how they ended, and passes signals on."""

    def __init__(
        self, listener: socket.socket, is_over: int, preloaded: forked_rank.Preloaded, refusal: str
    ) -> None:
        self._listener = listener
        self._is_over = is_over
        self._preloaded = preloaded
        self._refusal = refusal  # why no rank can be forked, "" if it can
        self._ranks: Dict[int, _Rank] = {}  # by descriptor of the shim's connection
        self._children, self._wake_up = os.pipe()

    def serve(self) -> forked_rank.Request:
        """Serve until torchrun and all ranks have ended; in a rank, return what it is to be."""
        forked_rank.die_with_parent(0)
        os.set_blocking(self._wake_up, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        self._on_child = signal.signal(signal.SIGCHLD, lambda *_: None)
        request = None
        while request is None:
            ready = self._wait()
            if self._is_over in ready:
                os.close(self._is_over)
                self._is_over = -1
            if self._children in ready:
                os.read(self._children, 4096)
                self._reap()
            for fd in ready.intersection(self._ranks):
                self._pass_on(self._ranks[fd])
            if self._is_over < 0 and not self._ranks:
                os._exit(0)
            request = self._accept() if self._listener.fileno() in ready else None
        return request

    def _wait(self) -> Set[int]:
        poll = select.poll()
        for fd in (self._children, self._is_over, self._listener.fileno(), *self._ranks):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll()}

    def _accept(self) -> Optional[forked_rank.Request]:
        shim, _ = self._listener.accept()
        try:
            request = receive(shim)
        except (OSError, ValueError, KeyError, TypeError):  # no shim of ours
            shim.close()
            return None
        reason = self._refusal or fork_safety.find_difference(request, self._preloaded)
        server_pid = os.getpid()
        pid = -1
        if not reason and not is_gone(shim):
            try:
                pid = fork_safety.fork()
            except OSError as error:  # the user has too many processes
                reason = f"no process can be forked ({error.strerror})"
        if pid < 0:
            send(shim, {"refused": reason})
            shim.close()
            for fd in request.fds:
                os.close(fd)
            return None
        if pid == 0:
            self._leave(shim)
            forked_rank.become(request, self._preloaded, server_pid)
            return request
        for fd in request.fds:
            os.close(fd)
        self._ranks[shim.fileno()] = _Rank(pid, shim)
        begun_at = start_ticks(pid)  # before it is reaped
        if not send(shim, {"pid": pid, "parent": server_pid, "start_ticks": begun_at}):
            kill_group(pid)  # the shim has executed it
        return None

    def _pass_on(self, rank: _Rank) -> None:
        """Pass signals on from a shim; without it its rank is ended."""
        try:
            data = rank.shim.recv(64)
        except OSError:
            data = b""
        if data:
            for signum in data:
                os.kill(rank.pid, signum)
            return
        del self._ranks[rank.shim.fileno()]
        rank.shim.close()
        kill_group(rank.pid)

    def _reap(self) -> None:
        by_pid = {rank.pid: rank for rank in self._ranks.values()}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = by_pid.get(pid)
            if rank is not None:
                del self._ranks[rank.shim.fileno()]
                send(rank.shim, {"status": status, "max_rss": usage.ru_maxrss * 1024})
                rank.shim.close()

    def _leave(self, shim: socket.socket) -> None:
        """Close, in a new rank, all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self._on_child)
        for connection in (self._listener, shim, *(rank.shim for rank in self._ranks.values())):
            os.close(connection.detach())
        for fd in (self._children, self._wake_up, self._is_over):
            if fd >= 0:
                os.close(fd)


def start_ticks(pid: int) -> int:
    """Return when a child began, by which it is found from outside of its PID namespace."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def kill_group(pid: int) -> None:
    """Kill a rank and what it has started; it may not lead its group yet."""
    for send_signal in (os.killpg, os.kill):
        try:
            send_signal(pid, signal.SIGKILL)
        except OSError:
            continue
        return


def receive(shim: socket.socket) -> forked_rank.Request:
    """Return the request of a shim, with its descriptors.

    OSError, ValueError, TypeError: It is no shim of the same user, or sent no request.
    """
    shim.settimeout(REQUEST_TIMEOUT_S)
    credentials = shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if struct.unpack("iII", credentials)[1] != os.getuid():
        raise PermissionError
    size = struct.calcsize("3i")
    head, ancillary, _, _ = shim.recvmsg(4, socket.CMSG_SPACE(size))
    fds = [fd for _, _, data in ancillary for fd in struct.unpack("3i", data)]
    try:
        for fd in fds:
            os.set_inheritable(fd, False)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            part = shim.recv(1 << 16)
            if not part:
                raise ConnectionError
            body += part
        return forked_rank.Request(**json.loads(body), fds=fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def is_gone(shim: socket.socket) -> bool:
    """Whether a shim has waited for too long, and has executed its rank."""
    poll = select.poll()
    poll.register(shim, select.POLLIN)
    try:
        return bool(poll.poll(0)) and not shim.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def send(shim: socket.socket, message: Mapping[str, Any]) -> bool:
    """Send a line to a shim; return whether it was still there."""
    try:
        shim.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True
