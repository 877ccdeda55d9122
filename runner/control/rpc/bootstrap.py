"""Bootstrap of the agent: the command that starts it, and our code, which follows on its input.

The bootloader says whether the host has the archive of modules from an earlier launch. Only where
it has not, the archive follows: compiled if the host's Python has this one's version. Both are made
from files that were read once, as an update may replace those while we run.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
import zlib
from collections.abc import Mapping
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import runner
from runner.core import shell
from runner.core.spec import Node, Spec
from runner.core.wire.boot import FOLDER, SOURCE, code_blob, pack
from runner.core.wire.codec import PROTOCOL, STAYS
from runner.core.wire.paths import PRELOAD_MODULES, USUAL_WORKDIR

BOOT_TIMEOUT_S = 20.0
"""How long a host may take from login to our code running (Python may be on slow NFS)."""

_LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'
"""All that `ps` shows of our code: the rest arrives on standard input."""

SHELL_STARTED = b"runner-boot: shell\n"
"""The first that the host's `/bin/sh` says: what came before it is of the login."""


def boot_command(spec: Spec, node: Node) -> list[str]:
    """Return the words that start the agent on a channel.

    The login shell may be fish or csh: it only has to start `/bin/sh`. The last words are
    for people who read `ps`.
    """
    python = shell.path(spec.cluster.host_python)
    ps_words = shell.line([spec.run_id, node.name])
    stays = f" {STAYS}" if node.transport == "srun" else ""
    script = (
        "echo runner-boot: shell; "
        f"command -v {python} >/dev/null 2>&1 || {{ echo runner-boot: no-python; exit 127; }}; "
        f"exec {python} -I -S -X utf8 -c {shell.quote(_LOADER)} "
        f"runner {ps_words} v{PROTOCOL}{stays}"
    )
    return ["/bin/sh", "-c", script]


# Our code

KEY = MAGIC_NUMBER.hex()
BOOT_ANSWER = re.compile(rb"\nrunner-boot: code ([0-9a-f]*)\n")
"""What the bootloader says: "" if the cache has the code, else the key of its Python's version."""

PROGRAMS = (
    "ranks/shim",
    "ranks/spawner",
    "ranks/rank_facts",
    "ranks/sitecustomize",
    "ranks/preload/preload",
    *(f"ranks/preload/{name}" for name in PRELOAD_MODULES),
)
"""Modules of ours, below `runner/host`, that become files on a host."""

BOOTLOADER = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("runner-boot: python-too-old %d.%d" % sys.version_info[:2])
import _thread, marshal, os, zlib
from _frozen_importlib_external import MAGIC_NUMBER
f = open(0, "rb", 0, closefd=False)
key, place, kept, d = MAGIC_NUMBER.hex(), PLACE, [], b""
def read_trusted(folder, name):
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
    _thread.start_new_thread(read_trusted, os.path.split(place))
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
modules = content["modules"]
class Importer:
    def find_spec(self, name, path=None, target=None):
        if name in modules:
            return type(sys.__spec__)(name, self, is_package=modules[name][0])
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        name = module.__name__
        code = zlib.decompress(modules[name][1])
        if content["key"]:
            code = marshal.loads(code)
        else:
            code = compile(code, name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Importer())
from runner.host.agent import server
server.main(content["programs"], d, place)
"""
"""The first program of ours on a host; any Python 3 gets far enough to report that it is too old.

The cache is read in a thread: the home folder may hang. An archive in it is used only if it and its
folder are owned by the user and writable by no one else, and if its checksum holds
(`host/storage/pool.py` writes it).
"""

_PACKAGE = Path(runner.__file__).parent
_LOCK = threading.Lock()  # many connections are opened by many threads, and one makes it for all


def boot_line() -> bytes:
    """Return what the loader reads first; it says whether `archive` has to follow."""
    with _LOCK:
        return _boot_line()


@functools.cache
def _boot_line() -> bytes:
    digest = hashlib.sha256(BOOTLOADER.encode())  # of all that an archive is made from
    for path, source in _sources().items():
        name = str(path).removeprefix(f"{_PACKAGE}/")
        digest.update(f"{name} {len(source)}\n".encode() + source)
    place = f"{USUAL_WORKDIR}/{FOLDER}/{digest.hexdigest()[:32]}"
    return f"exec({BOOTLOADER.replace('PLACE', repr(place))!r})\n".encode()


def archive_for(key: str) -> bytes:
    """Return what is to follow: a length, and the archive for hosts with that key."""
    with _LOCK:
        return _archive_for(KEY if key == KEY else SOURCE)


@functools.cache
def _archive_for(key: str) -> bytes:
    empty = code_blob(compile("", "runner/__init__.py", "exec")) if key else zlib.compress(b"")
    modules = {"runner": (True, empty)}
    for path, source in _sources().items():
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        data = zlib.compress(source)
        if key:
            data = code_blob(compile(source, str(path), "exec", dont_inherit=True))
        modules[name] = (is_package, data)
    texts = {Path(name).stem: _sources()[_PACKAGE / "host" / f"{name}.py"] for name in PROGRAMS}
    programs = {stem: zlib.compress(text) for stem, text in texts.items()}
    data = pack(key, modules, programs)
    return b"%d\n" % len(data) + data


@functools.cache
def _sources() -> Mapping[Path, bytes]:
    packages = (_PACKAGE / "core" / "wire", _PACKAGE / "host")
    paths = sorted((_PACKAGE / "core").glob("__init__.py"))
    paths += [path for package in packages for path in sorted(package.rglob("*.py"))]
    return {path: path.read_bytes() for path in paths}
