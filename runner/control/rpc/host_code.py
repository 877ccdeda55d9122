"""Host-side code as it travels: a boot line, and an archive of modules for hosts without it.

The line looks whether the host has kept the archive after an earlier launch, and says so. Only
where it has not, the archive follows: compiled if the host's Python has this one's version.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
import zlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import runner
from runner.core.protocol.code_archive import (
    FOLDER,
    IMPORTER,
    SOURCE,
    Archive,
    Blobs,
    code_blob,
)
from runner.core.protocol.paths import PRELOAD_MODULES, USUAL_WORKDIR

ANSWER = re.compile(rb"\nrunner-boot: code ([0-9a-f]*)\n")
"""What the boot line says: "" if the host has the code, else the key of its Python's version."""

KEY = MAGIC_NUMBER.hex()

_PACKAGE = Path(runner.__file__).parent

PROGRAMS = (
    *("ranks/shim", "ranks/spawner", "ranks/sitecustomize", "ranks/fault_dump"),
    *("container/client", "container/entry", "ranks/preload/preload"),
    *(f"ranks/preload/{name}" for name in PRELOAD_MODULES),
)
"""Modules of ours, below `runner/host`, that become files on a host."""
_LOCK = threading.Lock()

_BOOT = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("runner-boot: python-too-old %d.%d" % sys.version_info[:2])
import _thread, marshal, os, zlib
from _frozen_importlib_external import MAGIC_NUMBER
f = open(0, "rb", 0, closefd=False)
key, place, kept, d = MAGIC_NUMBER.hex(), PLACE, [], b""
def look(folder, name):
    try:
        fd = os.open(place, os.O_NOFOLLOW)
        c = os.read(fd, 1 << 26)
        s = os.fstat(fd), os.lstat(folder)
        os.close(fd)
        if all(i.st_uid == os.geteuid() and not i.st_mode & 0o22 for i in s):
            if c[:8] == b"%08x" % zlib.crc32(c[8:]):
                kept.append(c)
    except OSError:
        pass
    done.release()
if place:
    place = os.path.expanduser(place) + "-" + key
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(look, os.path.split(place))
    done.acquire(True, 2)
    d = b"".join(kept)
    os.write(1, b"\\nrunner-boot: code %s\\n" % (b"" if d else key.encode()))
if d:
    place = ""
else:
    n = int(f.readline())
    while len(d) < n:
        c = f.read(n - len(d))
        if not c:
            sys.exit("runner-boot: cut-off")
        d += c
content = marshal.loads(memoryview(d)[8:])
blobs = content["modules"]["IMPORTER"][1]
if key in blobs:
    code = marshal.loads(zlib.decompress(blobs[key]))
else:
    code = zlib.decompress(blobs[""])
names = {"__name__": "IMPORTER"}
exec(code, names)
names["start"](content, key, d, place)
"""
"""Any Python 3 gets far enough in it to report that it is too old.

What the host has kept is read in a thread: its home folder may hang.
"""


def boot_line() -> bytes:
    """Return what the loader reads first; it says whether `archive` has to follow."""
    with _LOCK:  # many connections are opened by many threads, and one makes it for all
        return _boot_line()


@functools.cache
def _boot_line() -> bytes:
    return _line(f"{USUAL_WORKDIR}/{FOLDER}/{_digest()}")


def archive_for(key: str) -> bytes:
    """Return what is to follow: a length, and the archive for hosts with that key."""
    with _LOCK:
        return _archive_for(KEY if key == KEY else SOURCE)


@functools.cache
def whole_code() -> bytes:
    """Return a line and an archive that need no answer, for any version of Python."""
    sources, compiled = _archive(SOURCE), _archive(KEY).modules
    modules = {
        name: (is_package, {**blobs, **compiled[name][1]})
        for name, (is_package, blobs) in sources.modules.items()
    }
    return _line("") + _sized(sources._replace(modules=modules))


def _line(place: str) -> bytes:
    boot = _BOOT.replace("PLACE", repr(place)).replace("IMPORTER", IMPORTER)
    return f"exec({boot!r})\n".encode()


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
    for path in _files():
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        data = code_blob(_code(path)) if key else zlib.compress(path.read_bytes())
        modules[name] = (is_package, {key: data})
    texts = {Path(name).stem: (_PACKAGE / "host" / f"{name}.py").read_bytes() for name in PROGRAMS}
    return Archive(modules, {stem: zlib.compress(text) for stem, text in texts.items()})


def _code(path: Path) -> CodeType | None:
    """Return a module compiled, as Python itself has kept it beside the source, if it has."""
    return SourceFileLoader(path.stem, str(path)).get_code(path.stem)


def _digest() -> str:
    """Return a hash of all that an archive is made from."""
    digest = hashlib.sha256(_BOOT.encode())
    for path in _files():
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:32]


def _files() -> Iterator[Path]:
    for package in ("core", "host"):
        yield from sorted((_PACKAGE / package).rglob("*.py"))
