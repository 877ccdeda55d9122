"""Unit tests for what the fork server looks at before it forks ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.host.ranks.preload import fork_server
from runner.host.ranks.preload.forked_rank import Request

ROOT = str(Path(__file__).parents[5])


def request(tmp_path: Path, *program: str, **environ: str) -> Request:
    """Return what a shim asks for."""
    words = program or (sys.executable, "-u", str(tmp_path / "train.py"))
    return Request([*words], environ, str(tmp_path), 0o22, [0], [], "")


def raise_error(error: BaseException) -> None:
    """Raise it, where only an expression may stand."""
    raise error


@pytest.mark.parametrize(
    ("is_bad", "why"),
    [
        (lambda: raise_error(SystemExit(0)), "a fork cannot compute"),
        (signal.pause, "an imported module has used threads"),
        (lambda: True, "an imported module has used a device"),
    ],
)
def test_a_fork_that_cannot_compute(
    is_bad: Callable[[], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the probe does, it ends, and its parent is told."""
    ones = SimpleNamespace(sigmoid_=int, mm=id)
    torch = SimpleNamespace(cuda=SimpleNamespace(_is_in_bad_fork=is_bad), ones=lambda *_: ones)
    monkeypatch.setitem(sys.modules, "torch", cast(Any, torch))
    monkeypatch.setattr(fork_server, "PROBE_TIMEOUT_S", 1)
    assert why in fork_server.check_fork()


PROCESS = """
import ctypes, sys
sys.path.insert(0, {root!r})
from runner.host.ranks.preload import fork_server
def look(program="-mtrain"):
    print(fork_server.check_process(program, {{0, 1, 2}}))
look()
look("/tmp")
libc = ctypes.CDLL(None)
number = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(number), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
look()
"""


def test_what_a_fork_would_lack() -> None:
    """Such as a thread; a program that is no text is not forked."""
    code = PROCESS.format(root=ROOT)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "",
        "/tmp is no .py file",
        "an imported module has started threads",
    ]


def test_a_rank_that_differs_from_its_host(tmp_path: Path) -> None:
    """In any variable but torchrun's for ranks, in its interpreter, or in what an import finds."""
    host = {"OMP_NUM_THREADS": "1"}
    same = request(tmp_path, OMP_NUM_THREADS="1", RANK="3", TORCHELASTIC_RUN_ID="x")
    assert not fork_server.find_difference(same, host)
    other = fork_server.find_difference(request(tmp_path, OMP_NUM_THREADS="2"), host)
    assert other == "OMP_NUM_THREADS of a rank differs from that of its host"
    program = request(tmp_path, "/other/python", "-u", "train.py", OMP_NUM_THREADS="1")
    assert "/other/python -u" in fork_server.find_difference(program, host)
    (tmp_path / "string.py").touch()
    assert "string.py has the name" in fork_server.find_difference(same, host)


PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
from runner.host.ranks.preload import forked_rank
sys.path.insert(0, {stubs!r})
import torch.later, torch.usual
sys.modules["torch.barred"] = None
os.environ["LOCAL_RANK"] = "0"
words = [sys.executable, "-c", "print('again')"]
request = forked_rank.Request(words, dict(os.environ), "/", 0, [*os.sched_getaffinity(0)], [], "")
sys.meta_path.insert(0, forked_rank.HeldModules(request, ["torch", "torch.later"]))
assert "torch" not in sys.modules
"""
STUBS = {
    "torch/__init__.py": "import os, needed",
    "torch/later.py": "import os",
    "torch/usual.py": "",
    "needed.py": "",
}


@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import torch.later", ""),
        ("import torch.usual; assert torch.usual.__spec__.loader_state is None", ""),
        ("os.environ['A'] = '1'; from torch.usual import os", "again, A is set before torch is"),
        ("os.environ['A'] = '1'; import needed", "again, A is set before needed is imported"),
        ("import needed; os.environ['A'] = '1'; import torch", "again, A is set before torch is"),
        ("import torch; os.environ['A'] = '1'; import needed", ""),
        ("import importlib.util as u; assert u.find_spec('torch').origin; import torch.later", ""),
        ("os.environ['NCCL_DEBUG'] = 'INFO'; import torch", ""),
        ("import torch, torch.later; os.environ['A'] = '1'; import torch.later", ""),
        ("os.environ['A'] = '1'; import torch", "again, A is set before torch is imported"),
        ("os.environ['A'] = '1'; from torch import later", "again, A is set before torch"),
        (
            "import torch; os.environ['A'] = '1'; import torch.later",
            "A is set after torch was imported, and may have no effect on torch.later",
        ),
        (
            "import torch; os.environ['A'] = '1'; from torch import later",
            "A is set after torch was imported, and may have no effect on torch.later",
        ),
    ],
)
def test_a_variable_that_a_program_sets_is_seen_or_named(
    program: str, printed: str, tmp_path: Path
) -> None:
    """Before its first import it has its effect, after it the program is told; a submodule, too."""
    site = tmp_path / "site-packages"
    (site / "torch").mkdir(parents=True)
    for name, text in STUBS.items():
        (site / name).write_text(text)
    code = PROGRAM.format(root=ROOT, stubs=str(site)) + program
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    said = done.stdout.replace("\n", ", ") + done.stderr.partition("itself: ")[2]
    said = said or done.stderr.removeprefix("runner: task.preload: ")
    assert (done.returncode, bool(said)) == (0, bool(printed)), done
    assert said.startswith(printed), done
