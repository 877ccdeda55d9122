"""What travels with a connection: our host-side code as one zip, and the shipped tasks."""

from __future__ import annotations

import functools
import hashlib
import io
import marshal
import zipfile
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import runner
from runner.core import shell
from runner.core.protocol.frames import PROTOCOL

_PACKAGE = Path(runner.__file__).parent

_LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'
"""All that `ps` shows of our code: the rest comes on standard input, its first line is `_BOOT`."""

_BOOT = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("runner-boot: python-too-old %d.%d" % sys.version_info[:2])
import os
f = open(0, "rb", 0, closefd=False)
n = int(f.readline())
d = b""
while len(d) < n:
    c = f.read(n - len(d))
    if not c:
        sys.exit("runner-boot: cut-off")
    d += c
if hasattr(os, "memfd_create"):
    z = os.memfd_create("runner")
else:
    import tempfile
    z, p = tempfile.mkstemp()
    os.unlink(p)
p = "/proc/self/fd/%d" % z
while d:
    d = d[os.write(z, d):]
sys.path.insert(0, p)
sys.dont_write_bytecode = True
from runner.host.agent import server
import zipimport
text = zipimport.zipimporter(p).get_data
server.main({n: text("runner/host/ranks/%s.py" % n).decode() for n in ("shim", "sitecustomize")})
"""
"""Runs on any Python 3 far enough to say that it is too old."""


@functools.cache
def host_code() -> bytes:
    """Return what the loader reads: a line of boot code, the zip's length, the zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("runner/__init__.py", "")
        for package in ("core", "host"):
            for path in sorted((_PACKAGE / package).rglob("*.py")):
                name = f"runner/{path.relative_to(_PACKAGE)}"
                archive.write(path, name)
                archive.writestr(f"{name}c", _bytecode(path))
    data = buffer.getvalue()
    return f"exec({_BOOT!r})\n{len(data)}\n".encode() + data


def _bytecode(path: Path) -> bytes:
    """Return a module compiled for this Python's version; hosts with another compile the source.

    It is an unchecked hash-based pyc (PEP 552): `zipimport` does not compare it with the source.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def boot_command(host_python: str, run_id: str, node: str) -> str:
    """Return the one command that turns a channel into a wire.

    The login shell may be fish or csh: it is only asked to start `/bin/sh`. The last words are
    there for people who read `ps`.
    """
    python = shell.path(host_python)
    ps_words = shell.line([run_id, node])
    script = (
        f"command -v {python} >/dev/null 2>&1 || {{ echo runner-boot: no-python; exit 127; }}; "
        f"exec {python} -I -X utf8 -c {shell.quote(_LOADER)} runner {ps_words} v{PROTOCOL}"
    )
    return f"exec /bin/sh -c {shell.quote(script)}"


@dataclass(frozen=True)
class ShippedTasks:
    """The shipped tasks: their content hash, the names and sizes of the files, the bytes."""

    hash: str
    files: tuple[tuple[str, int], ...]
    payload: bytes

    def header(self) -> dict[str, Any]:
        """Return what `go` says about the payload."""
        return {"hash": self.hash, "files": [list(file) for file in self.files]}


@functools.cache
def shipped_tasks() -> ShippedTasks:
    """Return every file of `runner/tasks`; they stand alone, so hosts need no package of ours."""
    paths = [p for p in sorted((_PACKAGE / "tasks").iterdir()) if p.is_file()]
    contents = [path.read_bytes() for path in paths]
    digest = hashlib.sha256()
    for path, content in zip(paths, contents, strict=True):
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    files = tuple((p.name, len(c)) for p, c in zip(paths, contents, strict=True))
    return ShippedTasks(digest.hexdigest()[:16], files, b"".join(contents))
