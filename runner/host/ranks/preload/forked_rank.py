"""Forked rank: turns a fork of the fork server into what exec would have made of it.

It gets the descriptors, environment, working folder and random state of a fresh process, and a
fresh `__main__`. Python's own start is CPython's `Modules/main.c` and `Lib/runpy.py`.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import threading
import types
from typing import (
    AbstractSet,
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
)

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
OOM_SCORE = "/proc/self/oom_score_adj"
MAX_ARGUMENTS = 1 << 22  # bytes
SITE_MODULE = "runner_sitecustomize"


_EXEC_NAMES = """
PYTHON LD_ LC_ LANG MALLOC_ GLIBC_TUNABLES JEMALLOC_ TCMALLOC_ ASAN_OPTIONS TSAN_OPTIONS
"""
EXEC_NAMES = tuple(_EXEC_NAMES.split())
"""Prefixes of what the interpreter, the dynamic linker and the allocators read at their start."""

_TORCH_NAMES = """
OMP_ GOMP_ KMP_ OPENBLAS_ GOTO_ MKL_ MKLDNN_ ONEDNN_ NPY_ NUMPY_ PYTORCH_JIT PYTORCH_ALLOC_CONF
PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NVML_BASED_CUDA_CHECK TORCH_LOGS TORCH_TRACE
TORCH_DTRACE TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_DISTRIBUTED_DEBUG
TORCH_DEVICE_BACKEND_AUTOLOAD TORCH_COMPILE_ TORCHDYNAMO_ TORCHINDUCTOR_ AOT_ TORCH_CUDA_SANITIZER
TORCH_BLAS_PREFER_ TORCH_LINALG_PREFER_ KINETO_ SYMPY_ CXX TMPDIR SSL_CERT_ OPENSSL_CONF TQDM_
"""
TORCH_NAMES = tuple(_TORCH_NAMES.split())
"""Prefixes of what `import torch` and `import torch._dynamo` read in C, or among all variables:
traced on torch 2.13. What Python code reads one by one is recorded."""

DYNAMO_NAMES = ("TORCH_COMPILE_", "TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCHINDUCTOR_", "AOT_")
"""Those that `torch._dynamo` reads: most are recorded besides."""


class Request(NamedTuple):
    """What the shim of a rank asks for: the process that it would have executed."""

    program: List[str]  # the interpreter, its options, the script or "-m" and a module, arguments
    environ: Dict[str, str]
    cwd: str
    umask: int
    cores: List[int]  # on which it may run
    mask: List[int]  # of the signals that are blocked
    site: str  # a folder whose `sitecustomize` prepares it for dumps of its stacks, "" for none
    fds: Sequence[int] = ()  # for its descriptors 0, 1 and 2


class Program(NamedTuple):
    """The words of a Python program."""

    options: Tuple[str, ...]  # of the interpreter
    target: str  # the path of a script, or the name of a module
    is_module: bool
    args: List[str]


def parse_program(words: Sequence[str]) -> Program:
    """Return the parts of a command line whose interpreter has options without arguments."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 1
    is_module = words[at] == "-m"
    options = tuple(words[1:at])
    at += is_module
    return Program(options, words[at], is_module, list(words[at + 1 :]))


class Preloaded(NamedTuple):
    """What a rank takes over from the process that has imported its modules."""

    modules: Sequence[str]  # by name
    environ: Mapping[str, str]  # before the imports
    added: Mapping[str, str]  # to the environment, by the imports
    path: Sequence[str]  # `sys.path`, without the folder of a script
    reads: Mapping[str, AbstractSet[str]]  # variables that the import of each has read


def become(request: Request, preloaded: Preloaded, server_pid: int) -> None:
    """Make this process the rank that was asked for, up to the start of its program."""
    os.setsid()
    if request.site:  # py-spy of the same user may read it
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    die_with_parent(server_pid)
    for target, fd in enumerate(request.fds):
        os.dup2(fd, target)
        os.close(fd)
    environ = {**preloaded.added, **request.environ}
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.sched_setaffinity(0, request.cores)
    raise_oom_score()
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
    set_title(request.program)
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()
    seed_anew()
    if request.site:
        _prepare_for_dumps(request.site)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or not any more, for 0: prctl(2)."""
    signum = signal.SIGKILL if parent else 0
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signum), 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)


def raise_oom_score() -> None:
    """Let the kernel kill a rank first when memory runs out, as the shim does."""
    with contextlib.suppress(OSError, ValueError), open(OOM_SCORE, "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + 300)
        file.seek(0)
        file.write(str(score))


def seed_anew() -> None:
    """Seed what was seeded before the fork, and is seeded at random in each fresh process.

    `random` does so by itself. torch draws the seed of its default generator while it is imported;
    `torch.seed()` would touch other devices.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _prepare_for_dumps(site: str) -> None:
    """Do what the run's `sitecustomize` does in a fresh rank; a rank must start without it, too."""
    try:
        path = os.path.join(site, "sitecustomize.py")
        spec = importlib.util.spec_from_file_location(SITE_MODULE, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        module.install_handler()
    except Exception:  # noqa: BLE001, S110
        pass


def set_title(words: Sequence[str]) -> None:
    """Have `ps` show these words, as far as they fit; nothing changes where it cannot be done.

    The kernel shows the memory in which the arguments of the process were put: proc(5), fields 48
    and 49 of `stat`.
    """
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        room = end - start
        if 0 < room < MAX_ARGUMENTS:
            ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)


class Start(NamedTuple):
    """How a rank's program starts in `__main__`: a module, or the text of a script."""

    module: str
    path: str
    source: bytes


def start_of(request: Request, preloaded: Preloaded) -> Start:
    """Return how its program is to start, with `sys` and `__main__` as they are then."""
    program = parse_program(request.program)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    getattr(sys, "orig_argv", [])[:] = request.program  # since Python 3.10
    folder = os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.target))
    safe_path = getattr(sys.flags, "safe_path", False)
    sys.path[:] = [*([] if safe_path else [folder]), *preloaded.path]
    sys.argv[:] = ["-m" if program.is_module else program.target, *program.args]
    watch_imports(preloaded, request)
    if program.is_module:
        return Start(program.target, "", b"")
    # Since Python 3.9 the path is made absolute.
    path = os.path.abspath(program.target) if sys.version_info >= (3, 9) else program.target
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    with io.open_code(path) as file:
        return Start("", path, file.read())


def changed(
    before: Mapping[str, str], now: Mapping[str, str], prefixes: Sequence[str]
) -> List[str]:
    """Return the variables with one of the prefixes ("" for any) whose values differ."""
    names = {name for name in (*before, *now) if before.get(name) != now.get(name)}
    return sorted(name for name in names if name.startswith(tuple(prefixes)))


@contextlib.contextmanager
def recorded(names: Set[str]) -> Iterator[None]:
    """Add the names of the variables that are read from `os.environ` meanwhile, one by one."""
    environ: Any = type(os.environ)
    original = environ.__getitem__

    def read(self: Any, name: str) -> str:
        if sys._getframe(1).f_code.co_name != "__iter__":  # noqa: SLF001 (who wants all of them)
            names.add(name)
        value: str = original(self, name)
        return value

    environ.__getitem__ = read
    try:
        yield
    finally:
        environ.__getitem__ = original


def watched(module: str) -> Sequence[str]:
    """Return the prefixes that matter to a module: what C code of others reads is unknown."""
    usual = {"torch": TORCH_NAMES, "torch._dynamo": DYNAMO_NAMES}
    return usual.get(module, () if top(module) == "torch" else ("",))


def top(name: str) -> str:
    """Return the top-level package of a module."""
    return name.partition(".")[0]


def remedy(name: str) -> str:
    """Return where a variable that a program sets is set before all imports."""
    key = f"task.env.{name}=..." if name.isidentifier() else "task.env"
    return f"{key} in its place keeps preload"


def watch_imports(preloaded: Preloaded, request: Request) -> None:
    """Have the program's imports of preloaded modules notice variables that it sets too late."""
    modules: Dict[str, Dict[str, types.ModuleType]] = {}
    tops = {top(name) for name in preloaded.modules}
    for name in [name for name in sys.modules if top(name) in tops]:
        modules.setdefault(top(name), {})[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, _PreloadedFinder(modules, preloaded, request))


class _PreloadedFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds each preloaded module, with its submodules, when the program imports it first."""

    def __init__(
        self,
        modules: Dict[str, Dict[str, types.ModuleType]],
        preloaded: Preloaded,
        request: Request,
    ) -> None:
        self._modules = modules
        self._request = request
        self._reads = preloaded.reads
        prefixes = [each for name in preloaded.modules for each in watched(name)]
        self._watched = [*prefixes, *(each for names in self._reads.values() for each in names)]
        self._environ = dict(os.environ)
        self._pid = os.getpid()
        self._is_first = True

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Return a spec like the module's own, which `importlib.util.find_spec` may ask for."""
        module = self._modules.get(fullname, {}).get(fullname)
        if module is None or module.__spec__ is None:
            return None
        own = module.__spec__
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        spec.cached = own.cached
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the module, unless the program needs another one."""
        if os.getpid() == self._pid:  # else it is a fork of the rank's
            self._look_at_environment(spec.name)
        module = self._modules[spec.name][spec.name]
        self._attributes = vars(module).copy()
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Undo what the import machinery has changed, and let the submodules be found.

        So is torch, which the other modules have imported.
        """
        vars(module).update({name: self._attributes[name] for name in ("__spec__", "__loader__")})
        for name in {module.__name__, "torch"}:
            for submodule, found in self._modules.pop(name, {}).items():
                sys.modules.setdefault(submodule, found)
        self._is_first = False
        if not self._modules:
            sys.meta_path.remove(self)

    def _look_at_environment(self, name: str) -> None:
        watched = self._watched if self._is_first else sorted(self._reads.get(name, ()))
        names = changed(self._environ, os.environ, watched)
        if names and self._is_first:
            why = f"{names[0]} is set before {name} is imported"
            execute_anew(self._request, f"{why}; {remedy(names[0])}")
        if names:  # what it has done since its first import cannot be undone
            why = f"{names[0]} is set after the first import, and {name} has read it"
            tell_node(f"{why}: that has no effect; set it in task.env")


def tell_node(message: str) -> None:
    """Write one line for all ranks of a node."""
    if os.environ.get("LOCAL_RANK") == "0":
        os.write(2, f"runner: task.preload: {message}\n".encode(errors="backslashreplace"))


def execute_anew(request: Request, why: str) -> NoReturn:
    """Replace this process by a fresh one, which does its own imports, from the rank's start."""
    sys.stdout.flush()
    sys.stderr.flush()
    tell_node(f"each rank starts again, and imports torch itself: {why}")
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.sched_setaffinity(0, request.cores)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.mask)
    os.execve(request.program[0], request.program, request.environ)


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
