"""Import environment: the variables that torch and other modules read while they are imported.

A program that sets one of them before its `import torch` is not served by a torch that was imported
before. Whether it does is first read from its text, and then observed at its first import. What
Python code reads is recorded; what C reads was traced on torch 2.13, over each phase of a run.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Set

EXEC_NAMES = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_TUNABLES", "JEMALLOC_", "TCMALLOC_"),
    *("ASAN_OPTIONS", "TSAN_OPTIONS"),
)
"""Prefixes of what the interpreter, the dynamic linker and the allocators read at their start."""

TORCH_NAMES = (
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "GOTO_", "MKL_", "MKLDNN_", "ONEDNN_"),
    *("NPY_", "NUMPY_", "PYTORCH_JIT", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCH_LOGS", "TORCH_TRACE"),
    *("TORCH_DTRACE", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_COMPILE_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_", "AOT_", "TORCH_CUDA_SANITIZER", "TORCH_BLAS_PREFER_"),
    *("TORCH_LINALG_PREFER_", "KINETO_", "SYMPY_", "CXX", "TMPDIR", "SSL_CERT_", "OPENSSL_CONF"),
    "TQDM_",
)
"""Prefixes of what `import torch` and `import torch._dynamo` read in C, or among all variables."""

DYNAMO_NAMES = ("TORCH_COMPILE_", "TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCHINDUCTOR_", "AOT_")
"""Those that `torch._dynamo` reads: most are recorded besides."""

METHODS = frozenset(("setdefault", "update", "pop", "clear"))
FUNCTIONS = frozenset(("putenv", "unsetenv", "load_dotenv"))
BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)


def changed(
    before: Mapping[str, str], now: Mapping[str, str], prefixes: Sequence[str]
) -> List[str]:
    """Return the variables with one of the prefixes ("" for any) whose values differ."""
    names = {*before, *now}
    return sorted(
        name
        for name in names
        if before.get(name) != now.get(name) and name.startswith(tuple(prefixes))
    )


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


def early_write(source: bytes, watches: Mapping[str, Sequence[str]]) -> str:
    """Return which variable a program's text sets before a module is imported that reads it, or "".

    `watches` has prefixes by module. Statements are followed in their order at module level, not
    into functions and helpers; a key that is no literal counts. When a submodule is imported cannot
    be seen: what it reads may be set nowhere in the text.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    pending = {name for name in watches if top(name) == name}
    for statement in _statements(tree.body):
        pending = {name for name in pending if not _imports(statement, name)}
        prefixes = tuple(prefix for name in pending for prefix in watches[name])
        for variable in _writes(statement):
            if pending and (variable is None or variable.startswith(prefixes)):
                return variable or "an environment variable"
    submodules = [name for name in watches if top(name) != name]
    prefixes = tuple(prefix for name in submodules for prefix in watches[name])
    return next((name for name in _writes(tree) if name and name.startswith(prefixes)), "")


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if not isinstance(statement, BLOCKS):
            yield statement
            continue
        for part in ("body", "handlers", "orelse", "finalbody"):
            for inner in getattr(statement, part, []):
                is_handler = isinstance(inner, ast.ExceptHandler)
                yield from _statements(inner.body if is_handler else [inner])


def _imports(statement: ast.stmt, module: str) -> bool:
    if isinstance(statement, ast.Import):
        return any(top(alias.name) == module for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and top(statement.module or "") == module


def _writes(tree: ast.AST) -> Iterator[Optional[str]]:
    """Yield the variables that statements set or remove, None for one that is not told."""
    for node in ast.walk(tree):
        is_change = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        if isinstance(node, ast.Subscript) and is_change and _is_environ(node.value):
            index: ast.AST = node.slice  # Python 3.8 has another node around it
            is_plain = isinstance(index, ast.Constant)
            yield from _keys([index if is_plain else getattr(index, "value", None)])
        elif isinstance(node, ast.Call):
            yield from _written_by_call(node)


def _written_by_call(call: ast.Call) -> Iterator[Optional[str]]:
    function = call.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if name not in FUNCTIONS and not (
        name in METHODS and _is_environ(getattr(function, "value", function))
    ):
        return
    if name == "update":
        for argument in call.args:
            yield from _keys(argument.keys if isinstance(argument, ast.Dict) else [None])
        yield from (keyword.arg for keyword in call.keywords)
    else:
        yield from _keys([None] if name in ("clear", "load_dotenv") else call.args[:1])


def _keys(nodes: Sequence[Optional[ast.AST]]) -> Iterator[Optional[str]]:
    for node in nodes:
        value = getattr(node, "value", None)
        yield value if isinstance(node, ast.Constant) and isinstance(value, str) else None


def _is_environ(node: ast.AST) -> bool:
    """Whether an expression is `os.environ`, however imported."""
    return "environ" in (getattr(node, "attr", ""), getattr(node, "id", ""))
