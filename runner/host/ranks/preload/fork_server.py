"""Fork server: imports torch once for a host; it becomes torchrun, and a fork of it serves ranks.

That fork imports what else ranks need; it computes nothing and starts no thread, so that its forks
are what an exec'd rank would be after its own imports. Each shim that comes gets a fork of its own,
the keeper, whose fork is the rank. Where that is not certain, shims execute ranks, and say why.
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
from typing import AbstractSet, Iterable, Mapping, Sequence, Tuple

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


def main(argv: Sequence[str]) -> forked_rank.Start:
    """Import torch, fork, and be torchrun; in a forked rank, return how its program starts."""
    listed, hide, program, launcher, *args = argv
    modules = [*dict.fromkeys(["torch", *filter(None, listed.split(","))])]
    path = list(sys.path)
    hidden = {name: os.environ.pop(name) for name in hide.split(",") if name in os.environ}
    visible = dict(os.environ)
    importlib.import_module("torch.distributed.run")
    address = b"\0runner-" + os.urandom(16).hex().encode()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(128)
    launcher_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        # What torchrun's process group gets is not for us: shims pass on what is for their ranks.
        signal.pthread_sigmask(signal.SIG_BLOCK, {*signal.valid_signals()} - {signal.SIGCHLD})
        forked_rank.die_with_parent(launcher_pid)
        try:
            refusal = import_all(modules)
            refusal = refusal or check_process(program, {0, 1, 2, listener.fileno()})
            refusal = refusal or check_fork()
        except Exception as error:  # noqa: BLE001 (ranks are executed, whatever it is)
            refusal = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # the collector must not write to, and thereby copy, what is shared
        added = {k: value for k, value in os.environ.items() if visible.get(k) != value}
        preloaded = forked_rank.Preloaded(visible, added, path, modules)
        request, keeper = serve(listener, preloaded, refusal)
        return forked_rank.become(request, preloaded, keeper)
    os.close(listener.detach())
    atexit.register(_end_server, pid)
    os.environ.update({**hidden, SERVER_VARIABLE: address[1:].decode()})
    if hidden.get("TORCH_CPP_LOG_LEVEL") in LEVELS:  # which its C++ code has read without it
        libraries = os.path.join(os.path.dirname(str(sys.modules["torch"].__file__)), "lib")
        with contextlib.suppress(OSError, ValueError):
            library = ctypes.CDLL(os.path.join(libraries, "libc10.so"))
            level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
            level.value = LEVELS.index(hidden["TORCH_CPP_LOG_LEVEL"])
    # What `python -P -m NAME ARG...` does.
    module = importlib.import_module(launcher)
    sys.argv[:] = [str(module.__file__), *args]
    module.main()
    sys.exit()


def import_all(names: Iterable[str]) -> str:
    """Import the modules of a user's list; return why one cannot be, "" if all are."""
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return f"{name} cannot be imported ({type(error).__name__}: {error})"
    return ""


def _end_server(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def check_process(program: str, own_fds: AbstractSet[int]) -> str:
    """Return why a fork would lack a thread, or share a device or a connection, "" if it does not.

    OpenBLAS and jemalloc have handlers for forks (tried); OpenBLAS's threads have no own name.
    """
    if not program.startswith("-m") and not (program.endswith(".py") and os.path.isfile(program)):
        return f"{program} is no .py file"
    if len(threading.enumerate()) > 1:
        return "an imported module has started a thread of Python"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        pools = {line.rpartition(" ")[2] for line in file if "openblas" in line}
    known = 1 + len(pools) * ((os.cpu_count() or 1) - 1)
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            known -= file.read() != "jemalloc_bg_thd\n"
    if known < 0:
        return "an imported module has started threads"
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if DEVICE_FILES.match(target):
            return f"an imported module has opened {target}"
        if target.startswith("socket:") and int(fd) not in own_fds:
            return "an imported module has opened a connection"
    return ""


def check_fork() -> str:
    """Return why a fork cannot compute, or that a device is in use already; "" if all is well."""
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
        return "an imported module has used a device"
    return "a fork cannot compute: an imported module has used threads" if status else ""


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


def serve(
    listener: socket.socket, preloaded: forked_rank.Preloaded, refusal: str
) -> Tuple[forked_rank.Request, int]:
    """Fork a keeper for each shim that comes, until torchrun ends, and with it this process.

    In a rank, return what it is to be, and its keeper. `refusal` is why none can be forked.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        shim, _ = listener.accept()
        try:
            pid = os.fork()
        except OSError as error:  # the user has too many processes
            send(shim, refused=cannot_fork(error))
            pid = -1
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return keep(shim, preloaded, refusal)
        shim.close()


def cannot_fork(error: OSError) -> str:
    return f"no process can be forked ({error.strerror})"


def keep(
    shim: socket.socket, preloaded: forked_rank.Preloaded, refusal: str
) -> Tuple[forked_rank.Request, int]:
    """Fork the rank of a shim, pass signals on, and tell how it ends; without the shim, end it."""
    keeper = os.getpid()
    pid = -1
    try:
        request = receive(shim)
    except (OSError, ValueError, TypeError):  # no shim of ours
        os._exit(1)
    refusal = refusal or find_difference(request, preloaded.environ)
    if select.select([shim], [], [], 0)[0]:  # it has executed its rank
        os._exit(0)
    try:
        pid = -1 if refusal else os.fork()
    except OSError as error:
        refusal = cannot_fork(error)
    if pid == 0:
        os.close(shim.detach())
        return request, keeper
    try:
        if pid < 0:
            send(shim, refused=refusal)
        else:
            keep_in_touch(shim, pid)
    finally:
        os._exit(0)


def keep_in_touch(shim: socket.socket, pid: int) -> None:
    """Pass signals on to a rank; return when the shim has ended and the rank is killed."""
    lock = threading.Lock()  # held from the end of the rank, so that its number stays its own

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with lock:
            send(shim, status=os.waitpid(pid, 0)[1])
            os._exit(0)

    with open(f"/proc/{pid}/stat", "rb") as file:
        begun_at = int(file.read().rpartition(b")")[2].split()[19])
    send(shim, pid=pid, parent=os.getpid(), start_ticks=begun_at)
    shim.settimeout(None)
    threading.Thread(target=wait).start()
    while data := shim.recv(64):
        with lock:
            for signum in data:
                os.kill(pid, signum)
    with lock:
        os.kill(pid, signal.SIGKILL)


def receive(shim: socket.socket) -> forked_rank.Request:
    """Return the request of a shim, with its descriptors.

    Raises:
        OSError, ValueError, TypeError: It is no shim of the same user, or sent no request.
    """
    shim.settimeout(REQUEST_TIMEOUT_S)
    size = struct.calcsize("3i")
    credentials = shim.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    if struct.unpack("iII", credentials)[1] != os.getuid():
        raise PermissionError
    head, ancillary, _, _ = shim.recvmsg(4, socket.CMSG_SPACE(size))
    fds = [fd for _, _, data in ancillary for fd in struct.unpack("3i", data)]
    with shim.makefile("rb") as stream:
        body = stream.read(int.from_bytes(head, "big"))
    return forked_rank.Request(**json.loads(body), fds=fds)


def send(shim: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):
        shim.sendall(json.dumps(message).encode() + b"\n")
