"""Slow hosts, long setups, unread consoles: none is given up early, and none holds up the rest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import RANK_SCRIPT, Launcher
from tests.lab.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.promise(4)]


@pytest.mark.all
def test_a_run_id_is_used_once(on_lab: Launcher) -> None:
    """A host that knows it already refuses it, so that no old record is taken for a new one."""
    words = ("cluster=lab", "cluster.only=[node1]", "run_id=same")
    assert on_lab.run_ranks("print=hi", *words, "run_dir=first").code == 0
    done = on_lab.run_ranks("exit=7", *words, "run_dir=second")
    assert done.code == 3, done
    assert "run_id: there is a run same" in done.err
    assert not (on_lab.folder / "second").exists()


@pytest.mark.promise(2)
def test_ctrl_c_ends_a_setup(lab: Lab, on_lab: Launcher) -> None:
    """Nothing was started, and nothing goes on."""
    words = on_lab.rank_overrides("print=hi")
    controller = on_lab.start("cluster=lab", 'cluster.setup=["sleep 888"]', *words)
    for node in ("node1", "node2"):
        wait_until(lambda n=node: lab[n].processes("sleep\x00888"), "the setup")  # type: ignore[misc]
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert "nothing was started" in done.err
    wait_until(lambda: lab.leftovers() == {}, "the setups to end")


@pytest.mark.slow
@pytest.mark.promise(1)
def test_a_console_nobody_reads_holds_up_nothing(lab: Lab, on_lab: Launcher) -> None:
    """With a full pipe the supervisors still hear their controller; the result is on disk."""
    disconnect_s = 15
    reading, writing = os.pipe()
    words = on_lab.rank_overrides("lines=99000", "touch=/dev/shm/up", "wait=/dev/shm/go", "exit=9")
    limit = f"disconnect_s={disconnect_s}"
    argv = [sys.executable, "-m", "runner", "cluster=lab", "cluster.only=[node1]", limit, *words]
    process = subprocess.Popen(argv, cwd=on_lab.folder, env=on_lab.env, stdout=writing)
    os.close(writing)
    try:
        wait_until(lambda: lab["node1"].sh("ls /dev/shm/up", check=False), "the lines", 60)
        time.sleep(disconnect_s + 2)
        assert lab["node1"].processes("rank.py")
        lab["node1"].sh("touch /dev/shm/go")
        assert process.wait(60 * PATIENCE) == 1
        run = on_lab.folder / "runs" / "latest"
        assert (run / "result.json").exists()
        assert (run / "logs" / "node1" / "rank_0.out").read_text().count("\n") == 99_000
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    assert lab.wait_idle() == {}


def test_output_that_is_cut_off_is_no_traceback(launcher: Launcher) -> None:
    """`| head`, and descriptors that are closed."""
    for tail in ("| true", "<&- >&- 2>&-"):
        line = f"{sys.executable} -m runner dry_run=offline task.script={RANK_SCRIPT} {tail}"
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=launcher.folder,
            env=launcher.env,
            capture_output=True,
            text=True,
            timeout=30 * PATIENCE,
            check=False,
        )
        assert "Traceback" not in done.stderr, (tail, done)


def test_nohup_keeps_a_run(lab: Lab, on_lab: Launcher) -> None:
    """Where SIGHUP was ignored when we came, it stays ignored."""
    words = on_lab.rank_overrides("touch=/dev/shm/up", "wait=/dev/shm/go", "print=done")
    argv = ["nohup", sys.executable, "-m", "runner", "cluster=lab", "cluster.only=[node1]", *words]
    process = subprocess.Popen(
        argv,
        cwd=on_lab.folder,
        env=on_lab.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: lab["node1"].sh("ls /dev/shm/up", check=False), "the rank", 30)
    process.send_signal(signal.SIGHUP)
    lab["node1"].sh("touch /dev/shm/go")
    said, _ = process.communicate(timeout=40 * PATIENCE)
    assert process.returncode == 0, said
    assert "[node1:0] done" in said
