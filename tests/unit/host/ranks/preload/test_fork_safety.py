"""Unit tests for what is looked at before ranks are forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.host.ranks.preload import fork_safety, forked_rank
from runner.host.ranks.preload.forked_rank import Preloaded, Request

NAMES = ("torch", "torch._dynamo")


def request(tmp_path: Path, *program: str, **environ: str) -> Request:
    """Return what a shim asks for."""
    words = program or (sys.executable, "-u", str(tmp_path / "train.py"))
    return Request([*words], environ, str(tmp_path), 0o22, [0], [], "")


def preloaded(**environ: str) -> Preloaded:
    return Preloaded(NAMES, environ, {}, [], {})


def test_a_program_is_looked_at_before(tmp_path: Path) -> None:
    """What names a variable that is read after torch's import, and what is no text of Python."""
    script = tmp_path / "train.py"
    script.write_text("import os, torch\nos.environ['TORCHDYNAMO_VERBOSE'] = '1'")
    why = r"train\.py names TORCHDYNAMO_VERBOSE, .* reads; task\.env\.TORCHDYNAMO_VERBOSE=\.\.\. in"
    with pytest.raises(fork_safety.ForkRefusal, match=why):
        fork_safety.check_program(str(script))
    script.write_text("import torch")
    fork_safety.check_program(str(script))
    with pytest.raises(fork_safety.ForkRefusal, match="no .py file"):
        fork_safety.check_program(str(tmp_path))


def test_a_package_that_loads_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch, by an entry point; not where the user has switched that off."""
    folder = tmp_path / "npu-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: npu\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[torch.backends]\nnpu = npu:load\n")
    fork_safety.check_backends()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(fork_safety.ForkRefusal, match="npu loads a device with torch"):
        fork_safety.check_backends()
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    fork_safety.check_backends()


def raise_error(error: BaseException) -> None:
    """Raise it, where only an expression may stand."""
    raise error


@pytest.mark.parametrize(
    ("is_bad", "why"),
    [
        (lambda: raise_error(SystemExit(0)), "a fork cannot compute$"),
        (signal.pause, "an imported module has used threads"),
        (lambda: True, "an imported module has used a device"),
    ],
)
def test_a_fork_that_cannot_compute(
    is_bad: Callable[[], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the probe does, it ends, and its parent is told."""
    cuda = SimpleNamespace(_is_in_bad_fork=is_bad)
    monkeypatch.setitem(sys.modules, "torch", cast(Any, SimpleNamespace(cuda=cuda)))
    if is_bad is signal.pause:
        monkeypatch.setattr(fork_safety, "PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(fork_safety.ForkRefusal, match=why):
        fork_safety.check_fork()


def test_open_devices_and_connections() -> None:
    """Forks would share them."""
    everything = {*range(1024)}
    fork_safety.check_descriptors(everything)
    with Path("/dev/full").open("rb"), pytest.raises(fork_safety.ForkRefusal, match="/dev/full"):
        fork_safety.check_descriptors(everything, ["/dev/full"])
    with socket.socket() as opened, pytest.raises(fork_safety.ForkRefusal, match="connection"):
        fork_safety.check_descriptors(everything - {opened.fileno()})


def test_a_thread_of_python_or_of_compiled_code() -> None:
    """A fork would lack it; those of OpenBLAS, which know about forks, wait elsewhere."""
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        with pytest.raises(fork_safety.ForkRefusal, match="thread of Python"):
            fork_safety.check_threads()
    finally:
        go_on.set()
        thread.join()
    code = f"""
import ctypes, sys, time
sys.path.insert(0, {str(Path(__file__).parents[5])!r})
from runner.host.ranks.preload import fork_safety
fork_safety.check_threads()
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
try:
    fork_safety.check_threads()
except fork_safety.ForkRefusal as refusal:
    print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "threads that are not those of OpenBLAS" in done.stdout


def test_a_rank_that_differs_from_its_host(tmp_path: Path) -> None:
    """In a variable that was read before, or its interpreter; others are its own affair."""
    same = preloaded(OMP_NUM_THREADS="1", HOME="/")
    assert not fork_safety.find_difference(request(tmp_path, OMP_NUM_THREADS="1", RANK="3"), same)
    other = fork_safety.find_difference(request(tmp_path, OMP_NUM_THREADS="2"), same)
    assert "OMP_NUM_THREADS" in other
    words = ("/other/python", "-u", "train.py")
    program = request(tmp_path, *words, OMP_NUM_THREADS="1")
    assert "/other/python" in fork_safety.find_difference(program, same)
    options = (sys.executable, "-u", "-O", "train.py")
    assert "-O" in fork_safety.find_difference(
        request(tmp_path, *options, OMP_NUM_THREADS="1"), same
    )


def test_variables_that_are_read_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every way of asking for one, whether it is set or not; all of them are none."""
    monkeypatch.setenv("IS_SET", "1")
    names: set[str] = set()
    with forked_rank.recorded(names):
        assert os.environ["IS_SET"] == "1"
        assert os.environ.get("IS_NOT") is None
        assert os.getenv("NOR_THIS") is None
        assert "IS_NO_MEMBER" not in os.environ
        assert ("IS_SET", "1") in [*os.environ.items()]
    assert os.environ.get("LATER") is None
    assert names == {"IS_SET", "IS_NOT", "NOR_THIS", "IS_NO_MEMBER"}
