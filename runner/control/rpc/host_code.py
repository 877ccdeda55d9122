"""Transfer of our code to a host: the bootloader, and an archive of modules for an empty cache.

The bootloader says whether the host has the archive from an earlier launch. Only where it has not,
the archive follows: compiled if the host's Python has this one's version. Both are made from files
that were read once, as an update may replace those while we run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import zlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, NamedTuple

import runner
from runner.control.rpc import bootloader
from runner.core.protocol.code_archive import FOLDER, SOURCE, Archive, Blobs, code_blob
from runner.core.protocol.paths import PRELOAD_MODULES, USUAL_WORKDIR

KEY = MAGIC_NUMBER.hex()

_PACKAGE = Path(runner.__file__).parent

PROGRAMS = (
    *("ranks/shim", "ranks/spawner", "ranks/rank_facts", "ranks/sitecustomize"),
    *("container/client", "container/entry", "ranks/preload/preload"),
    *(f"ranks/preload/{name}" for name in PRELOAD_MODULES),
)
"""Modules of ours, below `runner/host`, that become files on a host."""
_LOCK = threading.Lock()

_UNCHECKED, _CHECKED = b"\1\0\0\0", b"\3\0\0\0"
"""Flags of a .pyc that has a hash of the source (PEP 552): whether that is compared."""


class SourceFile(NamedTuple):
    """A file of ours as it was when we read it."""

    path: Path
    source: bytes
    mtime: float  # 0 if it was just being changed


class CodeLoader(SourceFileLoader):
    """Takes the .pyc that Python has kept if that is of the bytes we read; else compiles them."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__(file.path.stem, str(file.path))
        self._file = file

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Return what a .pyc has to be of."""
        del path
        return {"mtime": self._file.mtime, "size": len(self._file.source)}

    def get_data(self, path: str) -> bytes:
        """Return the source, or a .pyc; one with a hash is always compared."""
        if path == self.path:
            return self._file.source
        data = super().get_data(path)
        return data[:4] + _CHECKED + data[8:] if data[4:8] == _UNCHECKED else data


def boot_line() -> bytes:
    """Return what the loader reads first; it says whether `archive` has to follow."""
    with _LOCK:  # many connections are opened by many threads, and one makes it for all
        return _boot_line()


@functools.cache
def _boot_line() -> bytes:
    return bootloader.line(f"{USUAL_WORKDIR}/{FOLDER}/{_digest()}")


def archive_for(key: str) -> bytes:
    """Return what is to follow: a length, and the archive for hosts with that key."""
    with _LOCK:
        return _archive_for(KEY if key == KEY else SOURCE)


def whole_code() -> bytes:
    """Return a line and an archive that need no answer, for any version of Python."""
    with _LOCK:
        return _whole_code()


@functools.cache
def _whole_code() -> bytes:
    sources, compiled = _archive(SOURCE), _archive(KEY).modules
    modules = {
        name: (is_package, {**blobs, **compiled[name][1]})
        for name, (is_package, blobs) in sources.modules.items()
    }
    return bootloader.line("") + _sized(sources._replace(modules=modules))


@functools.cache
def _archive_for(key: str) -> bytes:
    return _sized(_archive(key))


def _sized(archive: Archive) -> bytes:
    data = archive.pack()
    return b"%d\n" % len(data) + data


def _archive(key: str) -> Archive:
    """Return all modules of core and host, as source or compiled for this version of Python."""
    empty = code_blob(compile("", "runner/__init__.py", "exec")) if key else zlib.compress(b"")
    modules: dict[str, tuple[bool, Blobs]] = {"runner": (True, {key: empty})}
    for file in _source_files():
        parts = file.path.relative_to(_PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        loader = CodeLoader(file)
        data = code_blob(loader.get_code(loader.name)) if key else zlib.compress(file.source)
        modules[name] = (is_package, {key: data})
    sources = {file.path: file.source for file in _source_files()}
    texts = {Path(name).stem: sources[_PACKAGE / "host" / f"{name}.py"] for name in PROGRAMS}
    return Archive(modules, {stem: zlib.compress(text) for stem, text in texts.items()})


def _digest() -> str:
    """Return a hash of all that an archive is made from."""
    digest = hashlib.sha256(bootloader.PROGRAM.encode())
    for path, source, _ in _source_files():
        name = str(path).removeprefix(f"{_PACKAGE}/")
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:32]


@functools.cache
def _source_files() -> tuple[SourceFile, ...]:
    packages = (_PACKAGE / "core", _PACKAGE / "host")
    return tuple(_read(path) for package in packages for path in sorted(package.rglob("*.py")))


def _read(path: Path) -> SourceFile:
    with path.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        source = file.read()
        after = os.fstat(file.fileno())
    is_settled = before.st_mtime_ns == after.st_mtime_ns and len(source) == after.st_size
    return SourceFile(path, source, after.st_mtime if is_settled else 0.0)
