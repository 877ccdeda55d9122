"""Fork safety: whether ranks can be forked from a process that has imported torch.

What a fork shares, or lacks, is looked for where it can be seen: threads, descriptors, devices; the
rest is tried in a fork that ends at once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import warnings
from typing import AbstractSet, Sequence

from . import forked_rank

DEVICE_FILES = (
    "/dev/nvidia",
    "/dev/kfd",
    "/dev/dri/",
    "/dev/infiniband/",
    "/dev/davinci",
    "/dev/accel",
)
PROBE_TIMEOUT_S = 5
OPTIONS = ("-u",)  # of the interpreter of ranks, and of ours
HARMLESS_THREADS = ("jemalloc_bg_thd",)
PROBE_FAILED = 2
BAD_FORK = 3
PROBE_SIZE = 1 << 17  # elements: enough for torch to compute on several threads


class ForkRefusal(Exception):
    """Why ranks cannot be forked from this process."""


def check_backends() -> None:
    """Raise ForkRefusal if a package has torch load a device while it is imported."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return
    from importlib import metadata  # noqa: PLC0415 (torch has imported it)

    for package in metadata.distributions():
        if any(point.group == "torch.backends" for point in package.entry_points):
            raise ForkRefusal(f"{package.metadata['Name']} loads a device with torch")


def check_program(program: str) -> None:
    """Raise ForkRefusal if the program is no file of Python, or may set what Dynamo's import reads.

    What it sets before its first import is noticed there; this is an import after that of torch.
    """
    path = program
    if program.startswith("-m"):
        base = os.path.join(os.getcwd(), *program[2:].split("."))
        path = next(filter(os.path.isfile, (f"{base}.py", os.path.join(base, "__main__.py"))), "")
    elif not program.endswith(".py") or not os.path.isfile(program):
        raise ForkRefusal(f"{program} is no .py file")
    if path:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = re.findall(r"\w+", file.read())
        for name in words:
            if name.startswith(forked_rank.DYNAMO_NAMES):
                why = f"{os.path.basename(path)} names {name}, which an import reads"
                raise ForkRefusal(f"{why}; {forked_rank.remedy(name)}")


def check_threads() -> None:
    """Raise ForkRefusal if there are threads that a fork would lack: their locks may be held.

    Those of OpenBLAS, which wait in libc, have handlers for forks (tried).
    """
    if len(threading.enumerate()) > 1:
        raise ForkRefusal("an imported module has started a thread of Python")
    waiting = 0
    for task in sorted(os.listdir("/proc/self/task")):
        if int(task) == os.getpid():
            continue
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
        if name in HARMLESS_THREADS:
            continue
        library = library_of(task)
        if not library.startswith(("libc.", "libc-")):
            where = f"in {library}" if library else "which does not wait"
            raise ForkRefusal(f"an imported module has started a thread, {name}, {where}")
        waiting += 1
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        pools = {line.rpartition(" ")[2] for line in file if "openblas" in line}
    if waiting > len(pools) * ((os.cpu_count() or 1) - 1):
        raise ForkRefusal("an imported module has started threads that are not those of OpenBLAS")


def library_of(task: str) -> str:
    """Return the file name of the library in which a thread of ours waits, "" if it does not.

    Those of OpenMP run for a while before they wait, on a busy machine for longer.
    """
    deadline = time.monotonic() + 0.5
    while True:
        with open(f"/proc/self/task/{task}/syscall", encoding="ascii") as file:
            words = file.read().split()
        if words[0] != "running" or time.monotonic() > deadline:
            break
    if words[0] == "running":
        return ""
    counter = int(words[-1], 16)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            area, _, rest = line.partition(" ")
            first, last = (int(number, 16) for number in area.split("-"))
            if first <= counter < last:
                return os.path.basename(rest.split()[-1])
    return ""


def check_descriptors(own: AbstractSet[int], devices: Sequence[str] = DEVICE_FILES) -> None:
    """Raise ForkRefusal if an import has opened a device or a connection, which forks would share.

    `own` are our sockets, and what was inherited.
    """
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(tuple(devices)):
            raise ForkRefusal(f"an imported module has opened {target}")
        if target.startswith("socket:") and int(fd) not in own:
            raise ForkRefusal("an imported module has opened a connection")


def check_fork() -> None:
    """Raise ForkRefusal if a fork cannot compute, or finds a device that was in use before it."""
    pid = fork()
    if pid == 0:
        code = PROBE_FAILED
        try:
            code = _probe()
        finally:
            os._exit(code)
    status = reap(pid, PROBE_TIMEOUT_S)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        raise ForkRefusal("a fork cannot compute: an imported module has used threads")
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BAD_FORK:
        raise ForkRefusal("an imported module has used a device")
    if status:
        raise ForkRefusal("a fork cannot compute")


def _probe() -> int:
    torch = sys.modules["torch"]
    for device in ("cuda", "xpu", "mtia"):
        is_bad = getattr(getattr(torch, device, None), "_is_in_bad_fork", None)
        if is_bad is not None and is_bad():
            return BAD_FORK
    torch.ones(PROBE_SIZE).sigmoid_()
    torch.ones(64, 64).mm(torch.ones(64, 64))
    return 0


def reap(pid: int, timeout_s: float) -> int:
    """Wait for a child, which is killed after so many seconds; return its wait status."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def fork() -> int:
    """Fork; Python 3.12 warns where there are threads, which were looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def find_difference(request: forked_rank.Request, preloaded: forked_rank.Preloaded) -> str:
    """Return why a rank is not what a fork of this process would be, "" if it is."""
    program = forked_rank.parse_program(request.program)
    before = dict(preloaded.environ)
    if request.site:
        paths = filter(None, (request.site, before.get("PYTHONPATH")))
        before["PYTHONPATH"] = os.pathsep.join(paths)
    prefixes = (*forked_rank.EXEC_NAMES, *forked_rank.TORCH_NAMES)
    names = forked_rank.changed(before, request.environ, prefixes)
    if names:
        return f"{names[0]} of a rank differs from that of its host"
    if request.program[0] != sys.executable:
        return f"the interpreter of ranks is {request.program[0]}"
    if program.options != OPTIONS:
        return f"the interpreter of ranks has other options: {' '.join(program.options)}"
    script_folder = os.path.dirname(os.path.realpath(program.target))
    try:
        name = find_shadow(request.cwd if program.is_module else script_folder)
    except OSError as error:
        return str(error)
    return name and f"{name} has the name of a module that an import would take instead"


def find_shadow(folder: str) -> str:
    """Return the path of a module in the folder that an imported one would hide, "" for none."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        stem, is_file = (name[:-3], True) if name.endswith(".py") else (name, False)
        if stem not in sys.modules or stem == "__main__":
            continue
        if is_file or os.path.isfile(os.path.join(path, "__init__.py")):
            return path
    return ""
