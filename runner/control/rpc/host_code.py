"""Transfer of our code to a host: the bootloader, and an archive of modules for an empty cache.

The bootloader says whether the host has the archive from an earlier launch. Only where it has not,
the archive follows: compiled if the host's Python has this one's version. Both are made from files
that were read once, as an update may replace those while we run.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import zlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import runner
from runner.control.rpc import bootloader
from runner.core.wire.boot import FOLDER, SOURCE, Archive, Blobs, code_blob
from runner.core.wire.paths import PRELOAD_MODULES, USUAL_WORKDIR

KEY = MAGIC_NUMBER.hex()

_PACKAGE = Path(runner.__file__).parent

PROGRAMS = (
    "ranks/shim",
    "ranks/rank_facts",
    "ranks/sitecustomize",
    "ranks/preload/preload",
    *(f"ranks/preload/{name}" for name in PRELOAD_MODULES),
)
"""Modules of ours, below `runner/host`, that become files on a host."""
_LOCK = threading.Lock()


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


@functools.cache
def _archive_for(key: str) -> bytes:
    return _sized(_archive(key))


def _sized(archive: Archive) -> bytes:
    data = archive.pack()
    return b"%d\n" % len(data) + data


def _archive(key: str) -> Archive:
    """Return the modules that travel, as source or compiled for this version of Python."""
    empty = code_blob(compile("", "runner/__init__.py", "exec")) if key else zlib.compress(b"")
    modules: dict[str, tuple[bool, Blobs]] = {"runner": (True, {key: empty})}
    for path, source in _sources().items():
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        data = code_blob(_compiled(path, source)) if key else zlib.compress(source)
        modules[name] = (is_package, {key: data})
    texts = {Path(name).stem: _sources()[_PACKAGE / "host" / f"{name}.py"] for name in PROGRAMS}
    return Archive(modules, {stem: zlib.compress(text) for stem, text in texts.items()})


def _compiled(path: Path, source: bytes) -> CodeType | None:
    """Return a module compiled, as Python has kept it unless the file is another by now."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    if path.read_bytes() == source:
        return code
    return compile(source, str(path), "exec", dont_inherit=True)


def _digest() -> str:
    """Return a hash of all that an archive is made from."""
    digest = hashlib.sha256(bootloader.PROGRAM.encode())
    for path, source in _sources().items():
        name = str(path).removeprefix(f"{_PACKAGE}/")
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:32]


@functools.cache
def _sources() -> Mapping[Path, bytes]:
    packages = (_PACKAGE / "core" / "wire", _PACKAGE / "host")
    paths = sorted((_PACKAGE / "core").glob("__init__.py"))
    paths += [path for package in packages for path in sorted(package.rglob("*.py"))]
    return {path: path.read_bytes() for path in paths}
