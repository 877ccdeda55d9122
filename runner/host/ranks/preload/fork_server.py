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
import re
import select
import signal
import socket
import struct
import sys
import threading
from typing import AbstractSet, Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from . import forked_rank

SERVER_VARIABLE = "RUNNER_FORK_SERVER"
"""Has the name of the server's abstract socket, for shims alone."""

LEVELS = ("INFO", "WARNING", "ERROR", "FATAL")
REQUEST_TIMEOUT_S = 3.0
PROBE_TIMEOUT_S = 5
PROBE_SIZE = 1 << 17  # elements: enough for torch to compute on several threads
BAD_FORK = 3
DEVICE_FILES = re.compile("/dev/(nvidia|kfd|dri/|infiniband/|davinci|accel)")
OF_RANKS = re.compile(
    "RANK|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC|RUNNER)_.*|WORLD_SIZE|NODE_RANK|NNODES"
    "|TORCH_NCCL_ASYNC_ERROR_HANDLING"
)
"""The variables that torchrun or a shim sets for a rank: no import reads them."""


class ForkRefusal(Exception):
    """Why ranks cannot be forked from this process."""


def main(argv: Sequence[str]) -> forked_rank.Start:
    """Import torch, fork, and be torchrun; in a forked rank, return how its program starts."""
    modules, hide, program, launcher, *args = argv
    path = list(sys.path)
    hidden = {name: os.environ.pop(name) for name in hide.split(",") if name in os.environ}
    visible = dict(os.environ)
    own_modules = frozenset(sys.modules)
    for name in ("torch", "torch.distributed.run"):
        importlib.import_module(name)
    loaded: Dict[str, AbstractSet[str]] = {"torch": frozenset(sys.modules)}
    address = b"\0runner-" + os.urandom(16).hex().encode()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(128)
    is_over, end = os.pipe()
    launcher_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        # What torchrun's process group gets is not for us: shims pass on what is for their ranks.
        signal.pthread_sigmask(signal.SIG_BLOCK, {*signal.valid_signals()} - {signal.SIGCHLD})
        forked_rank.die_with_parent(launcher_pid)  # as long as there are no ranks
        refusal = ""
        try:
            import_all(filter(None, modules.split(",")), loaded)
            check_process(program, {0, 1, 2, listener.fileno()})
            check_fork()
        except ForkRefusal as reason:
            refusal = str(reason)
        except Exception as error:  # noqa: BLE001 (ranks are executed, whatever it is)
            refusal = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # the collector must not write to, and thereby copy, what is shared
        added = {k: value for k, value in os.environ.items() if visible.get(k) != value}
        preloaded = forked_rank.Preloaded(visible, added, path, own_modules, loaded)
        request = ForkServer(listener, is_over, preloaded, refusal).serve()
        return forked_rank.start_of(request, preloaded)
    os.close(listener.detach())
    os.close(is_over)
    atexit.register(_end_server, end, pid)
    os.environ.update({**hidden, SERVER_VARIABLE: address[1:].decode()})
    if hidden.get("TORCH_CPP_LOG_LEVEL") in LEVELS:  # which its C++ code has read without it
        libraries = os.path.join(os.path.dirname(str(sys.modules["torch"].__file__)), "lib")
        with contextlib.suppress(OSError, ValueError):
            library = ctypes.CDLL(os.path.join(libraries, "libc10.so"))
            level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
            level.value = LEVELS.index(hidden["TORCH_CPP_LOG_LEVEL"])
    # What `python -P -m NAME ARG...` does.
    module = importlib.import_module(launcher)
    forked_rank.set_title([sys.executable, "-m", launcher, *args])
    sys.argv[:] = [str(module.__file__), *args]
    module.main()
    sys.exit()


def import_all(names: Iterable[str], loaded: Dict[str, AbstractSet[str]]) -> None:
    """Import the modules of a user's list; `loaded` gets what each has brought, or ForkRefusal."""
    for name in names:
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            why = f"{name} cannot be imported ({type(error).__name__}: {error})"
            raise ForkRefusal(why) from error
        loaded.setdefault(name, sys.modules.keys() - before)


def _end_server(end: int, pid: int) -> None:
    """Wait for the server, which ends by itself after torchrun and all ranks."""
    os.close(end)
    os.waitpid(pid, 0)


def check_process(program: str, own_fds: AbstractSet[int]) -> None:
    """Raise ForkRefusal if a fork would lack a thread, or share a device or a connection.

    OpenBLAS and jemalloc have handlers for forks (tried); OpenBLAS's threads have no own name.
    """
    if not program.startswith("-m") and not (program.endswith(".py") and os.path.isfile(program)):
        raise ForkRefusal(f"{program} is no .py file")
    if len(threading.enumerate()) > 1:
        raise ForkRefusal("an imported module has started a thread of Python")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        pools = {line.rpartition(" ")[2] for line in file if "openblas" in line}
    known = 1 + len(pools) * ((os.cpu_count() or 1) - 1)
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            known -= file.read() != "jemalloc_bg_thd\n"
    if known < 0:
        raise ForkRefusal("an imported module has started threads")
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if DEVICE_FILES.match(target):
            raise ForkRefusal(f"an imported module has opened {target}")
        if target.startswith("socket:") and int(fd) not in own_fds:
            raise ForkRefusal("an imported module has opened a connection")


def check_fork() -> None:
    """Raise ForkRefusal if a fork cannot compute, or finds a device that was in use before it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(PROBE_TIMEOUT_S)
            torch = sys.modules["torch"]
            devices = (getattr(torch, name, None) for name in ("cuda", "xpu", "mtia"))
            is_bad = any(getattr(device, "_is_in_bad_fork", bool)() for device in devices)
            torch.ones(PROBE_SIZE).sigmoid_()
            torch.ones(64, 64).mm(torch.ones(64, 64))
            code = BAD_FORK if is_bad else 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BAD_FORK:
        raise ForkRefusal("an imported module has used a device")
    if status:
        raise ForkRefusal("a fork cannot compute: an imported module has used threads")


def find_difference(request: forked_rank.Request, environ: Mapping[str, str]) -> str:
    """Return why a rank is not what a fork of this process would be, "" if it is."""
    if request.program[:2] != [sys.executable, "-u"]:
        return f"ranks are started by {' '.join(request.program[:2])}"
    if request.site:
        paths = filter(None, (request.site, environ.get("PYTHONPATH")))
        environ = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    for name in forked_rank.changed(environ, request.environ):
        if not OF_RANKS.fullmatch(name):
            return f"{name} of a rank differs from that of its host"
    folder = request.cwd if request.is_module else os.path.dirname(os.path.realpath(request.target))
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        return str(error)
    for entry in entries:
        path = os.path.join(folder, entry)
        stem, extension = os.path.splitext(entry)
        is_package = not extension and os.path.isfile(os.path.join(path, "__init__.py"))
        if (is_package or extension == ".py") and stem in sys.modules and stem != "__main__":
            return f"{path} has the name of a module that an import would take instead"
    return ""


class ForkServer:
    """Forks ranks for their shims, tells how they ended, and passes signals on."""

    def __init__(
        self, listener: socket.socket, is_over: int, preloaded: forked_rank.Preloaded, refusal: str
    ) -> None:
        self._listener = listener
        self._is_over = is_over
        self._preloaded = preloaded
        self._refusal = refusal  # why no rank can be forked, "" if it can
        self._ranks: Dict[int, Tuple[int, socket.socket]] = {}  # by descriptor: pid, its shim
        self._children, self._wake_up = os.pipe()

    def serve(self) -> forked_rank.Request:
        """Serve until torchrun and all ranks have ended; in a rank, return what it is to be."""
        forked_rank.die_with_parent(0)
        os.set_blocking(self._wake_up, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        request = None
        while request is None:
            poll = select.poll()
            for fd in (self._children, self._is_over, self._listener.fileno(), *self._ranks):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._is_over in ready:
                os.close(self._is_over)
                self._is_over = -1
            if self._children in ready:
                os.read(self._children, 4096)
                self._reap()
            for fd in ready.intersection(self._ranks):
                self._pass_on(fd)
            if self._is_over < 0 and not self._ranks:
                os._exit(0)
            request = self._accept() if self._listener.fileno() in ready else None
        return request

    def _accept(self) -> Optional[forked_rank.Request]:
        shim, _ = self._listener.accept()
        try:
            request = receive(shim)
        except (OSError, ValueError, KeyError, TypeError):  # no shim of ours
            shim.close()
            return None
        reason = self._refusal or find_difference(request, self._preloaded.environ)
        server_pid = os.getpid()
        pid = -1
        has_gone = bool(select.select([shim], [], [], 0)[0])  # it has executed its rank
        if not reason and not has_gone:
            try:
                pid = os.fork()
            except OSError as error:  # the user has too many processes
                reason = f"no process can be forked ({error.strerror})"
        if pid == 0:
            self._leave(shim)
            forked_rank.become(request, self._preloaded.added, server_pid)
            return request
        for fd in request.fds:
            os.close(fd)
        if pid < 0:
            send(shim, {"refused": reason})
            shim.close()
            return None
        self._ranks[shim.fileno()] = (pid, shim)
        with open(f"/proc/{pid}/stat", "rb") as file:  # before it is reaped
            begun_at = int(file.read().rpartition(b")")[2].split()[19])
        if not send(shim, {"pid": pid, "parent": server_pid, "start_ticks": begun_at}):
            os.kill(pid, signal.SIGKILL)  # the shim has executed it
        return None

    def _pass_on(self, fd: int) -> None:
        """Pass signals on from a shim; without it its rank is ended."""
        pid, shim = self._ranks[fd]
        try:
            data = shim.recv(64)
        except OSError:
            data = b""
        for signum in data:
            os.kill(pid, signum)
        if not data:
            del self._ranks[fd]
            shim.close()
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        by_pid = {pid: fd for fd, (pid, _) in self._ranks.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                _, shim = self._ranks.pop(by_pid[pid])
                send(shim, {"status": status})
                shim.close()

    def _leave(self, shim: socket.socket) -> None:
        """Close, in a new rank, all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self._listener, shim, *(shim for _, shim in self._ranks.values())):
            os.close(connection.detach())
        for fd in (self._children, self._wake_up, self._is_over):
            if fd >= 0:
                os.close(fd)


def receive(shim: socket.socket) -> forked_rank.Request:
    """Return the request of a shim, with its descriptors.

    OSError, ValueError, TypeError: It is no shim of the same user, or sent no request.
    """
    shim.settimeout(REQUEST_TIMEOUT_S)
    size = struct.calcsize("3i")
    credentials = shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    if struct.unpack("iII", credentials)[1] != os.getuid():
        raise PermissionError
    head, ancillary, _, _ = shim.recvmsg(4, socket.CMSG_SPACE(size))
    fds = [fd for _, _, data in ancillary for fd in struct.unpack("3i", data)]
    try:
        for fd in fds:
            os.set_inheritable(fd, False)
        with shim.makefile("rb") as stream:
            return forked_rank.Request(
                **json.loads(stream.read(int.from_bytes(head, "big"))), fds=fds
            )
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def send(shim: socket.socket, message: Mapping[str, Any]) -> bool:
    """Send a line to a shim; return whether it was still there."""
    try:
        shim.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True
