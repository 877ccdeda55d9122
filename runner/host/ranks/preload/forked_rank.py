"""Forked rank: turns a fork of the fork server into what exec would have made of it.

It gets the descriptors, environment, working folder and random state of a fresh process, and a
fresh `__main__`. Python's own start is CPython's `Modules/main.c` and `Lib/runpy.py`.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import ctypes
import importlib.abc
import importlib.machinery
import io
import os
import re
import runpy
import signal
import sys
import threading
import types
from typing import (
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Type,
)

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
READ_LATER = re.compile(
    "CUDA_DEVICE_.*|CUDA_LAUNCH_BLOCKING|CUDA_VISIBLE_DEVICES|(GLOO|MASTER|NCCL)_.*"
)
"""Variables that no import reads, but the first use of a device or a process group (traced on torch
2.13)."""


class Request(NamedTuple):
    """What the shim of a rank asks for: the process that it would have executed."""

    program: List[str]  # the interpreter, "-u", the script or "-m" and a module, arguments
    environ: Dict[str, str]
    cwd: str
    umask: int
    cores: List[int]  # on which it may run
    mask: List[int]  # of the signals that are blocked
    site: str  # a folder whose `sitecustomize` prepares it for dumps of its stacks, "" for none
    fds: Sequence[int] = ()  # for its descriptors 0, 1 and 2

    @property
    def is_module(self) -> bool:
        return self.program[2] == "-m"

    @property
    def target(self) -> str:
        """The path of a script, or the name of a module."""
        return self.program[2 + self.is_module]


class Preloaded(NamedTuple):
    """What a rank takes over from the process that has imported its modules."""

    environ: Mapping[str, str]  # before the imports
    added: Mapping[str, str]  # to the environment, by the imports
    path: Sequence[str]  # `sys.path`, without the folder of a script
    modules: Sequence[str]  # those that are listed


def _restore(request: Request) -> None:
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.sched_setaffinity(0, request.cores)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends: prctl(2)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Start(NamedTuple):
    """How a rank's program starts in `__main__`: a module, or the text of a script."""

    module: str
    path: str
    source: bytes


def become(request: Request, preloaded: Preloaded, keeper_pid: int) -> Start:
    """Make this process the rank that was asked for; return how its program is to start."""
    os.setsid()
    if request.site:  # py-spy of the same user may read it
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    die_with_parent(keeper_pid)
    for target, fd in enumerate(request.fds):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update({**preloaded.added, **request.environ})
    _restore(request)
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()
    # What was seeded at random before the fork; `random` seeds itself, `torch.seed()` would touch
    # other devices.
    sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if request.site:
        with contextlib.suppress(Exception):  # a rank must start without it, too
            site = runpy.run_path(os.path.join(request.site, "sitecustomize.py"))
            site["install_handler"]()
    return _start_of(request, preloaded)


def _start_of(request: Request, preloaded: Preloaded) -> Start:
    """Return how the program is to start, with `sys` and `__main__` as they are then."""
    target = request.target
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    getattr(sys, "orig_argv", [])[:] = request.program  # since Python 3.10
    folder = os.getcwd() if request.is_module else os.path.dirname(os.path.realpath(target))
    safe_path = getattr(sys.flags, "safe_path", False)
    sys.path[:] = preloaded.path if safe_path else [folder, *preloaded.path]
    sys.argv[:] = ["-m" if request.is_module else target, *request.program[3 + request.is_module :]]
    sys.meta_path.insert(0, HeldModules(request, preloaded.modules))
    if request.is_module:
        return Start(target, "", b"")
    # Since Python 3.9 the path is made absolute.
    path = os.path.abspath(target) if sys.version_info >= (3, 9) else target
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    with io.open_code(path) as file:
        return Start("", path, file.read())


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> List[str]:
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


class HeldModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Holds installed modules back until the program imports them, and looks then what it has set.

    An import of torch after a variable was set would have seen that: the rank starts again.
    Later that cannot be undone, so that it is only named. What is below a package, or below a
    listed module, is held with it.
    """

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        self._request = request
        self._environ = dict(os.environ)
        self._pid = os.getpid()
        self._listed = frozenset(names)
        files = {name: str(getattr(each, "__file__", "")) for name, each in sys.modules.items()}
        installed = {name.partition(".")[0] for name in files if "-packages/" in files[name]}
        self._names = self._listed | installed
        self._held: Dict[str, Dict[str, types.ModuleType]] = {name: {} for name in self._names}
        for name in names:  # or an attribute of its package would pass us by
            package, _, attribute = name.rpartition(".")
            if package:
                vars(sys.modules[package]).pop(attribute, None)
        for module in [*sys.modules]:
            holder = self._holder(module)
            if holder:
                self._held[holder][module] = sys.modules.pop(module)

    def _holder(self, module: str) -> str:
        parts = module.split(".")
        paths = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((path for path in paths if path in self._names), "")

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Return a spec like the module's own, which `importlib.util.find_spec` may ask for."""
        module = self._held.get(self._holder(fullname), {}).get(fullname)
        if module is None or module.__spec__ is None:
            return None
        spec = copy.copy(module.__spec__)
        spec.loader = self
        spec.loader_state = module
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module, unless the program needs another one."""
        if os.getpid() == self._pid:  # else it is a fork of the rank's
            self._look_at_environment(spec.name)
        module: types.ModuleType = spec.loader_state
        spec.loader_state = module.__spec__
        released = {self._holder(spec.name)}
        if "torch" in released:  # its import brings all but what is listed
            released |= self._held.keys() - self._listed
        for name in released:
            sys.modules.update(self._held.pop(name))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Undo what the import machinery has changed."""
        assert module.__spec__ is not None  # noqa: S101 (for mypy)
        module.__spec__ = module.__spec__.loader_state

    def _look_at_environment(self, module: str) -> None:
        differing = changed(self._environ, os.environ)
        names = [name for name in differing if not READ_LATER.fullmatch(name)]
        if not names:
            return
        is_early = "torch" in self._held
        told = (
            f"{names[0]} is set after torch was imported, and may have no effect on {module}, "
            "which was imported before; set it in task.env"
        )
        if is_early:
            told = (
                "each rank starts again, and imports torch itself: "
                f"{names[0]} is set before {module} is imported; set it in task.env in its place "
                "to keep preload"
            )
        sys.stdout.flush()
        sys.stderr.flush()
        if os.environ.get("LOCAL_RANK") == "0":  # one line for all ranks of a node
            os.write(2, f"runner: task.preload: {told}\n".encode(errors="backslashreplace"))
        if is_early:
            _restore(self._request)
            program = self._request.program
            os.execve(program[0], program, self._request.environ)


def hide_frames(own_files: Sequence[str]) -> None:
    """Have the traceback of an exception that ends the program begin with the program's frames."""
    show = sys.excepthook

    def hook(
        kind: Type[BaseException], error: BaseException, trace: Optional[types.TracebackType]
    ) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in own_files:
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook
