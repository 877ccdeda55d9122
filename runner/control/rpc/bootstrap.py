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
from runner.core.protocol.timing import SETUP_TIMEOUT_S, SPEEDUP, SPEEDUP_VARIABLE

BOOT_TIMEOUT_S = 20.0
"""How long a host may take from login to our code running (Python may be on slow NFS)."""

_PACKAGE = Path(runner.__file__).parent

_LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'
"""All that `ps` shows of our code: the rest arrives on standard input, `_BOOT` first."""

_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 8))"

_WATCH_SETUP = (  # in one line, for csh
    'trap "" PIPE; while sleep 1 >/dev/null && kill -0 $$; do '
    'printf "\\0" || kill -KILL 0; '
    "[ $SECONDS -lt {limit_s:.0f} ] || {{ echo runner-boot: setup-timeout; kill -KILL 0; }}; done"
)
"""Ends the process group of the setup at boot: at its limit, or when the channel is closed.

A NUL byte each second is how it notices that, since standard input has unread data; the controller
leaves them out.
"""

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
import importlib, zipimport
text = zipimport.zipimporter(p).get_data
files = "ranks/shim", "ranks/spawner", "ranks/sitecustomize", "ranks/fault_dump"
files += "container/client", "container/entry"
main = {"slurm-task": "slurm.node_task", "slurm-verdict": "slurm.verdict"}
main = "runner.host." + main.get(sys.argv[1], "agent.server")
files = {n.split("/")[1]: text("runner/host/%s.py" % n).decode() for n in files}
importlib.import_module(main).main(files)
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


def boot_words(python: str) -> str:
    """Return the words, as shell text, that start our code from standard input; more follow."""
    return f"{shell.path(python)} -I -X utf8 -c {shell.quote(_LOADER)}"


def job_words(spec: Spec) -> str:
    """Return the same for a node of a job, where the setup lines may bring the interpreter."""
    words, python = boot_words(spec.host_python), shell.path(spec.host_python)
    if not spec.setup:
        return words
    lines = "\n".join(spec.setup)
    script = f'command -v {python} >/dev/null || {{ {lines}\n}} </dev/null >&2; exec "$@"'
    return f"bash --norc --noprofile -c {shell.quote(script)} setup {words}"


def boot_input(setup: Sequence[str]) -> bytes:
    """Return what the boot command reads: the lines of `cluster.setup`, then the host-side code."""
    return _setup_text(setup) + host_code()


def boot_limit_s(spec: Spec) -> float:
    """Return how long a host may take from login to our code running, with the setup it needs."""
    return BOOT_TIMEOUT_S + (SETUP_TIMEOUT_S if spec.setup else 0.0)


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
        f"exec {speedup}{boot_words(spec.host_python)} runner {ps_words} v{PROTOCOL}"
    )
    if not spec.setup:
        return f"exec /bin/sh -c {shell.quote(start)}"
    project = "" if spec.deploy.enabled else spec.project
    folder = f"cd {shell.path(project)} 2>/dev/null; " if project else ""
    watch = _WATCH_SETUP.format(limit_s=SETUP_TIMEOUT_S)
    # Neither a job of this shell nor a holder of its descriptors: nobody waits for it.
    with_setup = (
        f"exec 3>&1; __runner_watch=$({{ {watch}; }} 2>/dev/null >&3 3>&- & echo $!); exec 3>&-; "
        'trap "builtin kill $__runner_watch" EXIT; '
        f'{folder}{{ eval "$__runner_setup"; }} </dev/null 2>&1; '
        "trap - EXIT; builtin kill $__runner_watch; unset __runner_setup __runner_watch; "
        f"cd; {start}"
    )
    script = (  # dd reads byte by byte, as it is told; some `head` would take of the code as well
        f"lines=$(dd bs=1 count={len(_setup_text(spec.setup))} 2>/dev/null); "
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
        hint += f"{shell.this_program()} explain {key} {shell.cluster_flag(spec.cluster)}"
        message = f"there is no {spec.host_python}{where}"
        return Problem(node, message, f"{_output_of_setup(text)}{hint}")
    if "runner-boot: setup-timeout" in text:
        message = f"the lines of cluster.setup did not end within {SETUP_TIMEOUT_S:.0f} s there"
        hint = "what hangs in them? they ran because the agent needs the Python that they bring: "
        hint += "cluster.host_python can name another one"
        return Problem(node, message, f"{_output_of_setup(text)}{hint}")
    if "runner-boot: python-too-old" in text or "unknown option -I" in text.lower():
        version = text.rpartition("too-old ")[2].split()[0] if "too-old " in text else "2"
        message = f"{spec.host_python} there is Python {version}; the agent needs 3.8 or newer"
        hint = "set cluster.host_python to a newer one (cluster.python may stay)"
        return Problem(node, message, hint)
    message = f"the agent did not start there: {reason}"
    return Problem(node, message, text[-500:] or f"try by hand: {spec.host_python} -V")


def _output_of_setup(text: str) -> str:
    """Return the last of what the setup printed, as lines before a hint."""
    output = text.partition("runner-boot:")[0].strip()[-500:]
    return f"{output}\n" if output else ""
