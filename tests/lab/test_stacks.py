"""Stacks of Python processes, and whether they make progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


def test_who_moves_and_who_only_waits(start: Start) -> None:
    """A line, computing, and reading count; to look now and then whether one may go on does not."""
    progress = Progress(60, trusts_gpus=True)
    waits, _ = start("import time\nprint(1, flush=True)\nwhile True: time.sleep(0.05)")
    progress.sample({"rank_0.out": 3}, waits)  # not the test process: it uses CPU to sample
    time.sleep(0.3)
    begun = progress.last_activity
    progress.sample({"rank_0.out": 3}, waits)
    assert progress.last_activity == begun
    progress.sample({"rank_0.out": 4}, waits)
    assert progress.last_activity > begun
    reads = "import time\nwhile True: open('/dev/zero', 'rb').read(1 << 20); time.sleep(0.02)"
    maps = (
        "import mmap, time\n"
        "while True:\n"
        "    with mmap.mmap(-1, 1 << 20) as m: m[::4096] = bytes(256)\n"
        "    time.sleep(0.02)"
    )
    below = "import os\nif os.fork(): os.wait(); os._exit(0)\nprint(1, flush=True)\n"
    for code in ("while True: pass", reads, maps):
        root, _ = start(below + code)  # which only waits: what its child does counts
        (child,) = procfs.descendants(root)
        try:
            progress.sample({"rank_0.out": 4}, root)  # what it took to start
            begun = progress.last_activity

            def moves(root: int = root, begun: float = begun) -> bool:
                time.sleep(0.3)
                progress.sample({"rank_0.out": 4}, root)
                return progress.last_activity > begun

            wait_until(moves, code)
        finally:
            os.kill(child, signal.SIGKILL)
