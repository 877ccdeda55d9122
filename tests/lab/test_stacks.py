"""Stacks of Python processes, and whether they make progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.outcome.stacks import Stack, parse_dumps
from runner.core.wire.paths import DUMP_END, DUMP_HEADER
from runner.host.process import procfs
from runner.host.ranks import sitecustomize, stacks
from runner.host.ranks.stacks import StackTarget
from runner.host.supervisor.stall_monitor import Progress
from tests.lab.waiting import wait_until

DUMPER = Path(sitecustomize.__file__).read_text()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder that comes first on a rank's PYTHONPATH."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DUMPER)
    return folder


WAITS = """
def load():
    print("up", flush=True)
    import time; time.sleep(60)
load()
"""


class Start:
    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, code: str, *path: Path) -> tuple[int, str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
        argv = [sys.executable, "-c", code]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        self._started.append(process)
        assert process.stdout is not None
        return process.pid, process.stdout.readline().strip()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    """Pythons."""
    start = Start()
    yield start
    start.close()


def told(*pids: int) -> list[Stack]:
    asked = [StackTarget(rank, pid, stacks.find_memory_file(pid)) for rank, pid in enumerate(pids)]
    head = DUMP_HEADER.format(when="now", why="asked for")
    texts = stacks._format_stacks(asked)
    (dump,) = parse_dumps(head + "".join(texts) + DUMP_END)
    return dump.stacks


def functions(stack: Stack) -> list[str]:
    return [frame.function for frame in stack.frames]


def test_a_prepared_python_tells_where_it_is(site: Path, start: Start) -> None:
    """Again and again, and goes on; so do children that were forked, each its own place."""
    fork = "import os, time\ndef work():\n    time.sleep(60)\nif os.fork() == 0:\n    work()\n"
    parent, said = start(fork + WAITS, site)
    assert said == "up"
    (child,) = [p for p in procfs.descendants(os.getpid()) if procfs.table()[p].ppid == parent]
    try:
        for _ in range(2):
            main, forked = told(parent, child)
            assert (functions(main), main.method) == (["load", "<module>"], "faulthandler")
            assert functions(forked) == ["work", "<module>"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_python_for_an_old_libc_tells_it_too(site: Path, start: Start) -> None:
    """It lacks `memfd_create`."""
    text = f"import os\nif hasattr(os, 'memfd_create'):\n    del os.memfd_create\n{DUMPER}"
    (site / "sitecustomize.py").write_text(text)
    pid, _ = start(WAITS, site)
    (main,) = told(pid)
    assert functions(main) == ["load", "<module>"]


@pytest.mark.parametrize("offered", [False, True])
def test_no_process_is_signalled_that_does_not_offer(
    site: Path, start: Start, offered: bool
) -> None:
    """A real-time signal would kill it: it is told why there is nothing.

    One that closed the file of its offer does so no more: the descriptor may be its checkpoint's.
    """
    if offered:
        pid, _ = start("import os\nos.closerange(3, 2000)\n" + WAITS, site)
    else:
        pid, _ = start(WAITS)
    (mute,) = told(pid)
    assert mute.frames == ()
    assert mute.method == "nothing: it is not a Python that the runner prepared"
    assert procfs.is_running(pid)


def test_the_sitecustomize_of_a_site_runs_all_the_same(
    site: Path, start: Start, tmp_path: Path
) -> None:
    """As if ours were not there: under its own name, and we are not on the path."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; MARK = [p for p in sys.path if 'site' in p]")
    code = "import sitecustomize; print(sitecustomize.__file__, sitecustomize.MARK)"
    _, said = start(code, site, own)
    assert said.startswith(f"{own}/sitecustomize.py")
    assert str(site) not in said
    (own / "sitecustomize.py").write_text("raise ImportError('no plugin', name='plugin')")
    assert start("print('up')", site, own)[1] == "up"


MOVES = {
    "while True: pass": "last_activity",
    "while True: open('/dev/zero', 'rb').read(1 << 20)": "last_io",
    "import mmap\nwhile True:\n"
    "    with mmap.mmap(-1, 1 << 20) as m: m[::4096] = bytes(256)": "last_io",
}


def test_a_line_counts_and_to_look_now_and_then_does_not(start: Start) -> None:
    """Whether one may go on."""
    progress = Progress(60, trusts_gpus=True)
    # Not the test process, which uses the CPU to sample.
    waits, _ = start("import time\nprint(1, flush=True)\nwhile True: time.sleep(0.05)")
    progress.sample({"rank_0.out": 3}, waits)
    begun = progress.last_activity
    wakes = int(stacks.status_field(waits, "voluntary_ctxt_switches"))

    def has_looked() -> bool:
        return int(stacks.status_field(waits, "voluntary_ctxt_switches")) > wakes + 5

    wait_until(has_looked, "it to look")
    progress.sample({"rank_0.out": 3}, waits)
    assert progress.last_activity == begun
    progress.sample({"rank_0.out": 4}, waits)
    assert progress.last_activity > begun


@pytest.mark.parametrize(("code", "shows"), MOVES.items(), ids=["computes", "reads", "maps"])
def test_what_a_child_does_counts(start: Start, code: str, shows: str) -> None:
    """Also where its parent only waits."""
    progress = Progress(60, trusts_gpus=True)
    below = "import os\nif os.fork(): os.wait(); os._exit(0)\nprint(1, flush=True)\n"
    root, _ = start(below + code)
    (child,) = procfs.descendants(root)
    progress.sample({}, root)  # what it took to start
    begun: float = getattr(progress, shows)

    def moves() -> bool:
        progress.sample({}, root)
        return bool(getattr(progress, shows) > begun)

    try:
        wait_until(moves, code)
    finally:
        os.kill(child, signal.SIGKILL)
