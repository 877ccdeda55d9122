"""Code that travels with a connection."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.control.rpc import bootstrap
from runner.core.spec import Cluster, Node, Spec
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
