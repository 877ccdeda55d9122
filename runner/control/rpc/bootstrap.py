"""Bootstrap of the agent: the command that starts it, and the host-side code as one zip."""

from __future__ import annotations

import functools
import io
import marshal
import threading
import zipfile
import zlib
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import runner
from runner.core import shell
from runner.core.errors import Problem
from runner.core.model.spec import Spec
from runner.core.protocol.frames import PROTOCOL
from runner.core.protocol.timing import SPEEDUP, SPEEDUP_VARIABLE

_PACKAGE = Path(runner.__file__).parent

_LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'
"""All that `ps` shows of our code: the rest arrives on standard input, `_BOOT` first."""

_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 8))"

_HOST_CODE_LOCK = threading.Lock()

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
d = __import__("zlib").decompress(d)
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
"""Any Python 3 gets far enough in it to report that it is too old."""


def host_code() -> bytes:
    """Return what the loader reads: a line of boot code, a length, the compressed zip.

    The zip is compressed as a whole, not file by file: source and bytecode of all modules have
    much in common, and it travels to every host over one uplink.
    """
    with _HOST_CODE_LOCK:  # connections are opened by many threads, and one makes it for all
        return _make_host_code()


@functools.cache
def _make_host_code() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("runner/__init__.py", "")
        for package in ("core", "host"):
            for path in sorted((_PACKAGE / package).rglob("*.py")):
                name = f"runner/{path.relative_to(_PACKAGE)}"
                archive.write(path, name)
                archive.writestr(f"{name}c", _bytecode(path))
    data = zlib.compress(buffer.getvalue())
    return f"exec({_BOOT!r})\n{len(data)}\n".encode() + data


def _bytecode(path: Path) -> bytes:
    """Return a module compiled for this Python's version; hosts with another compile the source.

    It is an unchecked hash-based pyc (PEP 552): `zipimport` does not compare it with the source.
    """
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def boot_input(setup: Sequence[str]) -> bytes:
    """Return what the boot command reads: the lines of `cluster.setup`, then the host-side code."""
    return _setup_text(setup) + host_code()


def boot_command(spec: Spec, node: str) -> str:
    """Return the command that starts the agent on a channel.

    The login shell may be fish or csh: it only has to start `/bin/sh`. The last words are
    for people who read `ps`. Where the interpreter is not there, or is too old, the lines of
    `cluster.setup` run first: they may bring it. They come on standard input, which `ps` does
    not show.
    """
    python = shell.path(spec.host_python)
    ps_words = shell.line([spec.run_id, node])
    speedup = f"env {SPEEDUP_VARIABLE}={SPEEDUP:g} " if SPEEDUP != 1 else ""
    start = (
        f"command -v {python} >/dev/null 2>&1 || {{ echo runner-boot: no-python; exit 127; }}; "
        f"exec {speedup}{python} -I -X utf8 -c {shell.quote(_LOADER)} runner {ps_words} v{PROTOCOL}"
    )
    if not spec.setup:
        return f"exec /bin/sh -c {shell.quote(start)}"
    project = "" if spec.deploy.enabled else spec.project
    folder = f"cd {shell.path(project)} 2>/dev/null; " if project else ""
    with_setup = (
        f'{folder}{{ eval "$__runner_setup"; }} </dev/null 2>&1; unset __runner_setup; cd; {start}'
    )
    script = (
        f"lines=$(head -c {len(_setup_text(spec.setup))}); "
        f"{python} -c {shell.quote(_IS_NEW_ENOUGH)} </dev/null >/dev/null 2>&1 || "
        "! command -v bash >/dev/null 2>&1 || "
        f"__runner_setup=$lines exec bash --norc --noprofile -c {shell.quote(with_setup)}; {start}"
    )
    return f"exec /bin/sh -c {shell.quote(script)}"


def _setup_text(setup: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in setup).encode()


def boot_problem(spec: Spec, node: str, banner: bytes, reason: str) -> Problem:
    """Explain why the agent did not start on a node, from what it printed in place of frames."""
    text = banner.decode(errors="replace").strip()
    if "runner-boot: no-python" in text:
        where = "" if "/" in spec.host_python else " on its PATH"
        where += ", also after the lines of cluster.setup" if spec.setup else ""
        is_same = spec.host_python == spec.python
        key = "cluster.python" if is_same else "cluster.host_python"
        hint = f"set {key} to a Python 3.8 or newer there\nwhat sets it: "
        hint += f"python -m runner explain {key} cluster={shell.quote(spec.cluster)}"
        output = text.partition("runner-boot:")[0].strip()[-500:]  # of the setup
        hint = f"{output}\n{hint}" if output else hint
        return Problem(node, f"there is no {spec.host_python}{where}", hint)
    if "runner-boot: python-too-old" in text or "unknown option -I" in text.lower():
        version = text.rpartition("too-old ")[2].split()[0] if "too-old " in text else "2"
        message = f"{spec.host_python} there is Python {version}; the agent needs 3.8 or newer"
        hint = "set cluster.host_python to a newer one (cluster.python may stay)"
        return Problem(node, message, hint)
    message = f"the agent did not start there: {reason}"
    return Problem(node, message, text[-500:] or f"try by hand: {spec.host_python} -V")
