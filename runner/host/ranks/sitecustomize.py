"""`sitecustomize` of a run's ranks: it lets their supervisor ask for their Python stacks.

A file of its own, written first on the ranks' PYTHONPATH; it imports nothing of ours. CPython's
faulthandler writes the stack of the main thread from a signal handler in C, also while that is in
a collective; to read other threads' from there crashes now and then (python/cpython#116008). It
goes into a file that has no name and no place on a disk: who finds it open in a process knows that
this process takes the signal; no other is signalled. As any signal it may end a `poll` or `sleep`
of compiled code early, where that does not go on by itself.
"""

import faulthandler
import fcntl
import os
import sys

# Its friend `signal` brings enum, which takes five times as long as all of this.
from _signal import SIG_DFL, getsignal  # type: ignore[import-not-found]

DUMP_SIGNAL = 60
"""SIGRTMAX-4: a real-time signal without a meaning to libc, Java, NCCL or CUDA."""

MIN_FD = 700
"""Descriptors are taken from here on: programs that close those of others begin with the low."""


def install_handler() -> None:
    """Have SIGNAL write the stacks of this process to a memory file called runner-stacks."""
    if getsignal(DUMP_SIGNAL) is not SIG_DFL:
        return
    fd = os.memfd_create("runner-stacks")
    try:
        file = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_FD)
        os.close(fd)
    except OSError:  # few may be open here
        file = fd
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=False)


def run_next_sitecustomize() -> None:
    """Run the `sitecustomize` that this one stands before, as if this one were not there."""
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
    try:  # noqa: SIM105 (contextlib would cost every Python of the rank its import)
        install_handler()
    except Exception:  # noqa: BLE001, S110 (no oddity of a Python may cost a rank its start)
        pass
    run_next_sitecustomize()
