"""The start of an agent: setup lines, code that travels, and what a host keeps of that."""

from __future__ import annotations

import contextlib
import marshal
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from runner.control.rpc import bootstrap
from runner.core.spec import Cluster, Node, Spec
from runner.core.wire.boot import SOURCE
from runner.core.wire.codec import MAGIC
from runner.host.storage.pool import MAX_ARCHIVES, store_archive
from tests.lab.waiting import PATIENCE, wait_until


@pytest.mark.parametrize("python", ["no-such-python", "~/it's not/there"])
def test_missing_python_is_told_in_words_of_ours(python: str) -> None:
    """Any POSIX shell gets as far as saying so, whatever the path looks like."""
    done = boot(a_spec(host_python=python))

    assert (done.returncode, done.stdout, done.stderr) == (127, b"runner-boot: no-python\n", b"")


def test_setup_may_bring_the_python(tmp_path: Path) -> None:
    """It runs only where the interpreter is not there; what it says stays out of our protocol."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "our-python").symlink_to(sys.executable)
    path = f"PATH={tmp_path}/env:$PATH"
    lines = ('cat; echo "it\'s loud" >&2', path, f"echo ran >> {tmp_path}/ran")

    brought = boot(a_spec(host_python="our-python", setup=lines), code=b"print('booted')\n")
    not_needed = boot(a_spec(host_python=sys.executable, setup=lines), code=b"print('booted')\n")

    assert (brought.stdout, brought.stderr) == (b"it's loud\nbooted\n", b"")
    assert (not_needed.stdout, not_needed.stderr) == (b"booted\n", b"")
    assert (tmp_path / "ran").read_text() == "ran\n"


HEAD_THAT_READS_AHEAD = f"""\
#!{sys.executable}
import os, sys
os.write(1, os.read(0, 1 << 16)[: int(sys.argv[2])])
"""


def test_setup_takes_nothing_of_the_code(tmp_path: Path) -> None:
    """The programs of busybox read ahead of what they are asked for."""
    programs = tmp_path / "bin"
    programs.mkdir()
    if busybox := shutil.which("busybox"):
        for name in ("cat", "dd", "head", "sleep"):
            (programs / name).symlink_to(busybox)
    else:
        (programs / "head").write_text(HEAD_THAT_READS_AHEAD)
        (programs / "head").chmod(0o755)
    spec = a_spec(host_python=sys.executable, setup=("export A=1",))

    code = b"import sys; print(len(sys.stdin.buffer.read()))\n"
    done = boot(spec, code + bytes(600 << 10), PATH=f"{programs}:{os.environ['PATH']}")

    assert done.stdout == b"%d\n" % (600 << 10), done


HANG = "sleep 987 & echo $! > $FOLDER/hanging; wait"


@contextlib.contextmanager
def started(spec: Spec, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Boot a host; kill what is left of that in the end."""
    process = subprocess.Popen(
        bootstrap.boot_command(spec, spec.nodes[0]),
        cwd=tmp_path,
        env={**os.environ, "FOLDER": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def hanging_setup(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Boot a host whose setup hangs; yield that, and the process that hangs, once it does."""
    spec = a_spec(host_python="brought", setup=("echo first", HANG))
    hanging = tmp_path / "hanging"
    with started(spec, tmp_path) as process:
        assert process.stdin is not None
        process.stdin.write(bootstrap.boot_input(spec.cluster.setup)[:5000])
        process.stdin.flush()
        wait_until(lambda: hanging.exists() and hanging.read_text(), "the setup to hang")
        yield process, int(hanging.read_text())


@pytest.mark.parametrize("setup", [("set -e", "false"), ("kill() { :; }", "exit 3")])
def test_setup_that_exits_ends_the_boot_at_once(tmp_path: Path, setup: tuple[str, ...]) -> None:
    """Whoever waits for the end of its output may be who has to reap it."""
    spec = a_spec(host_python="brought", setup=setup)
    with started(spec, tmp_path) as process:
        process.communicate(bootstrap.boot_input(spec.cluster.setup), timeout=30 * PATIENCE)


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.mark.promise(2, 4)
def test_setup_that_hangs_ends_with_the_channel(tmp_path: Path) -> None:
    """Over SSH nobody is signalled when a connection ends: only the pipes are closed."""
    with hanging_setup(tmp_path) as (process, pid):
        assert is_running(pid)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        wait_until(lambda: not is_running(pid), "the end of the setup")


@pytest.mark.promise(4)
def test_setup_that_hangs_ends_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all it started; the error quotes what it printed."""
    monkeypatch.setattr(bootstrap, "SETUP_TIMEOUT_S", 1.0)
    with hanging_setup(tmp_path) as (process, pid):
        output, _ = process.communicate(timeout=30 * PATIENCE)
        wait_until(lambda: not is_running(pid), "the end of the setup")

    spec = a_spec(host_python="brought", setup=(HANG,))
    problem = bootstrap.boot_problem(
        spec, "gpu1", output.replace(b"\0", b"").replace(bootstrap.SHELL_STARTED, b""), "it ended"
    )
    assert problem.message == "the lines of cluster.setup did not end within 1 s there"
    assert problem.hint.startswith("first\nwhat hangs in them? ")


def a_spec(**fields: Any) -> Spec:
    node = Node("gpu1", "gpu1")
    cluster = Cluster(name="lab", **fields)
    return Spec(run_id="0102-0304-x-abcd", cluster=cluster, nodes=(node,))


def boot(spec: Spec, code: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    words = bootstrap.boot_command(spec, spec.nodes[0])
    text = "".join(f"{line}\n" for line in spec.cluster.setup).encode() + code
    env = {**os.environ, **env}
    done = subprocess.run(words, input=text, env=env, capture_output=True, check=False)
    done.stdout = done.stdout.removeprefix(bootstrap.SHELL_STARTED)
    return done


def archive(key: str) -> dict[str, Any]:
    size, data = bootstrap.archive_for(key).split(b"\n", 1)
    assert int(size) == len(data)
    content: dict[str, Any] = marshal.loads(memoryview(data)[8:])  # noqa: S302 (our own)
    return content


@pytest.mark.parametrize("key", [bootstrap.KEY, "0a0d0d0a"])
def test_only_wire_and_host_travel(key: str) -> None:
    """Hosts get no other room; compiled if the version is this one's, else as source."""
    sent = archive(key)
    modules = sent["modules"]
    rooms = {name.removeprefix("runner.").removeprefix("core.").split(".")[0] for name in modules}
    assert rooms == {"runner", "core", "wire", "host"}
    assert "runner.host.agent.server" in modules
    assert modules["runner.host"][0] is True
    assert sent["key"] == (key if key == bootstrap.KEY else SOURCE)
    assert {"shim", "spawner", "sitecustomize", "preload"} <= set(sent["programs"])


def booted(home: Path, *, sends: bool) -> bytes:
    """Boot an agent in a home folder; return what it says until the agent or nothing follows."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", bootstrap._LOADER, "runner"],
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(bootstrap.boot_line())
        process.stdin.flush()
        said = process.stdout.readline() + process.stdout.readline()
        if sends:
            process.stdin.write(bootstrap.archive_for(bootstrap.KEY))
            process.stdin.flush()
        answered = process.stdout.read(len(MAGIC)) if sends or b"code \n" in said else b""
        process.stdin.close()
        process.kill()
    assert answered in (MAGIC, b"")
    return said


def place(home: Path) -> Path:
    digest = re.search(rb"[0-9a-f]{32}", bootstrap.boot_line())
    assert digest is not None
    return home / ".runner" / "code" / f"{digest[0].decode()}-{bootstrap.KEY}"


@pytest.mark.parametrize("key", [bootstrap.KEY, SOURCE])
def test_what_a_host_has_kept_does_not_travel_again(tmp_path: Path, key: str) -> None:
    """Compiled there if it came as source; it is private, and only a few are kept."""
    tmp_path.chmod(0o700)
    assert booted(tmp_path, sends=True) == b"\nrunner-boot: code %s\n" % bootstrap.KEY.encode()
    data = bootstrap.archive_for(key).split(b"\n", 1)[1]
    for number in range(MAX_ARCHIVES + 2):
        store_archive(f"{place(tmp_path)}{number}-{bootstrap.KEY}", data)
    store_archive(str(place(tmp_path)), data)
    assert len(list(place(tmp_path).parent.iterdir())) == MAX_ARCHIVES
    assert place(tmp_path).stat().st_mode & 0o777 == 0o600
    assert booted(tmp_path, sends=False) == b"\nrunner-boot: code \n"


@pytest.mark.parametrize("harm", ["torn", "link"])
def test_what_is_not_as_it_was_kept_is_not_used(tmp_path: Path, harm: str) -> None:
    """A power cut may tear it, and nobody else may have written it."""
    tmp_path.chmod(0o700)
    store_archive(str(place(tmp_path)), bootstrap.archive_for(bootstrap.KEY).split(b"\n", 1)[1])
    if harm == "torn":
        os.truncate(place(tmp_path), 100_000)
    else:
        place(tmp_path).rename(tmp_path / "elsewhere")
        place(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert bootstrap.KEY.encode() in booted(tmp_path, sends=True)


def test_an_update_while_we_run_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts would keep it under the hash of what we began with."""
    caches = (bootstrap._sources, bootstrap._boot_line, bootstrap._archive_for)
    monkeypatch.setattr(bootstrap, "_PACKAGE", tmp_path / "runner")
    monkeypatch.setattr(bootstrap, "PROGRAMS", ("module",))
    module = tmp_path / "runner" / "host" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n")
    os.utime(module, (1_000_000_000, 1_000_000_000))
    for cache in caches:
        cache.cache_clear()
    try:
        line = bootstrap.boot_line()
        module.write_text("x = 2\n")
        os.utime(module, (1_000_000_001, 1_000_000_001))
        py_compile.compile(str(module))
        compiled = archive(bootstrap.KEY)["modules"]["runner.host.module"][1]
        code: CodeType = marshal.loads(zlib.decompress(compiled))  # noqa: S302 (our own)
        assert (code.co_consts[0], bootstrap.boot_line()) == (1, line)
        sources = archive(SOURCE)
        blobs = (sources["modules"]["runner.host.module"][1], sources["programs"]["module"])
        assert {zlib.decompress(blob) for blob in blobs} == {b"x = 1\n"}
    finally:
        for cache in caches:
            cache.cache_clear()
