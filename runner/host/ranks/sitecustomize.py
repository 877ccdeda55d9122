"""`sitecustomize` of a run's ranks: lets their supervisor request their Python stacks.

CPython's faulthandler writes the stack of the main thread from a signal handler in C, even during a
collective; reading other threads from there crashes now and then (python/cpython#116008). It writes
to a file in memory. Like any signal it may end a `poll` or `sleep` of compiled code early.
"""

import faulthandler
import fcntl
import os
import sys

# The public `signal` imports enum, which takes five times as long as this whole file.
from _signal import SIG_DFL, getsignal  # type: ignore[import-not-found]

DUMP_SIGNAL = 60  # SIGRTMAX-4: without a meaning to libc, Java, NCCL or CUDA
MIN_FD = 700  # the lowest to use: programs that close descriptors begin with the low ones


def install_handler() -> None:
    """Make `DUMP_SIGNAL` write the stack of this process to a file in memory, runner-stacks."""
    if getsignal(DUMP_SIGNAL) is not SIG_DFL:
        return
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("runner-stacks")
    else:  # a Python built for an old libc, as conda's are
        path = f"/dev/shm/runner-stacks-{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    try:
        file = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_FD)
        os.close(fd)
    except OSError:  # the limit is lower than that
        file = fd
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=False)


def run_next_sitecustomize() -> None:
    """Run the `sitecustomize` that this one hides on the path, if any."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own_folder]
    own_module = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own_module
    except BaseException:
        sys.modules["sitecustomize"] = own_module
        raise


if __name__ == "sitecustomize":
    try:  # noqa: SIM105 (importing contextlib would slow down every Python of the rank)
        install_handler()
    except Exception:  # noqa: BLE001, S110 (a rank must start with any Python)
        pass
    run_next_sitecustomize()
